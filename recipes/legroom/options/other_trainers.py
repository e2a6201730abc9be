"""Reads what is typed for another trainer into overrides: a command of TRL, a YAML file of axolotl or LLaMA-Factory.

Every setting is read, or named as one that is not: nothing is dropped without a word. Where a file says nothing, the
other trainer's defaults count, and they are named as well.
"""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import yaml

from legroom import yaml_table
from legroom.errors import Refusal
from legroom.options import keys, overrides

_TABLES = yaml_table.beside(__file__)
TITLES = {"trl": "TRL", "axolotl": "axolotl", "llama_factory": "LLaMA-Factory"}
MOST_CHARACTERS = 2**16
LEFT_OUT = ""  # in place of overrides
TWICE_THE_RANK = "adapter.alpha=2*adapter.rank"
ROWS = ("dataset_name", "datasets", "dataset")
ZERO_STAGE = re.compile(r"z(?:ero)?_?([123])")  # in the name of a file for DeepSpeed
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".txt")
COMMAND = re.compile(r"(?:^|\s)trl\s+(\w+)|(?:^|\s)--[\w-]+")


@dataclass
class Reading:
    """What was read.

    trainer: its title. overrides: the same here, without the card. assumed: those of them that are the other trainer's
    defaults. left_out: settings without a place here that change neither memory nor time, such as where logs go.
    unread: all others, as `name: value`.
    """

    trainer: str
    overrides: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read(text: str) -> Reading:
    """What a pasted text asks for. Raises Refusal for one that is of no known trainer."""
    if len(text) > MOST_CHARACTERS:
        raise Refusal(f"What was pasted has more than {MOST_CHARACTERS:,} characters.")
    if COMMAND.search(text):
        return _read_settings("trl", _of_command(text))
    try:
        settings = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise Refusal(f"What was pasted is no command line and no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(settings, dict):
        raise Refusal("What was pasted is no command line (trl sft --...) and has no settings (name: value).")
    settings = {str(name): value for name, value in settings.items()}
    if "base_model" in settings:
        return _read_settings("axolotl", settings)
    if "model_name_or_path" not in settings:
        raise Refusal(
            "What was pasted names no model: base_model (axolotl) or model_name_or_path (TRL, LLaMA-Factory)."
        )
    is_llama_factory = {"finetuning_type", "stage", "cutoff_len", "template"} & settings.keys()
    return _read_settings("llama_factory" if is_llama_factory else "trl", settings)


def _of_command(text: str) -> dict[str, Any]:
    """The settings of a command line: `--name value`, `--name=value` and `--name` alone."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise Refusal(f"What was pasted is no command line: {error}.") from error
    settings: dict[str, Any] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            settings[name] = yaml.safe_load(value) if equals else True
            continue
        if name is None:  # trl, sft, accelerate launch, a script
            continue
        if settings[name] is True:
            settings[name] = yaml.safe_load(word)
        elif isinstance(settings[name], list):
            settings[name].append(word)
        else:
            settings[name] = [settings[name], word]
    return settings


def _read_settings(trainer: str, settings: dict[str, Any]) -> Reading:
    table = _TABLES[trainer]
    reading = Reading(TITLES[trainer])
    for name, value in settings.items():
        typed = _setting(name, value, table)
        if typed is None:
            reading.unread.append(f"{name}: {_shown(value)}")
        elif typed == [LEFT_OUT]:
            reading.left_out.append(name)
        else:
            reading.overrides += typed
    _one_option_each(reading)
    _assume(reading, table["assumed"], settings)
    if _has_adapter(reading.overrides):
        _assume(reading, table.get("assumed_with_adapter", {}), settings)
    if "data" not in _keys_of(reading.overrides):
        reading.overrides.append("data=chat")
    _leave_out_what_is_refused(reading)
    return reading


def _assume(reading: Reading, defaults: dict[str, str], settings: dict[str, Any]) -> None:
    """Add the other trainer's default of each setting that is not given, under this or another name."""
    for name, default in defaults.items():
        typed = default.split()
        if name in settings or typed[0].partition("=")[0] in _keys_of(reading.overrides):
            continue
        if typed == [TWICE_THE_RANK]:
            typed = _twice_the_rank(reading.overrides)
        reading.assumed += typed
        reading.overrides += typed


def _twice_the_rank(typed: list[str]) -> list[str]:
    """adapter.alpha as twice the rank that is typed; nothing for a rank that is no number."""
    rank = next((text.partition("=")[2] for text in typed if text.startswith("adapter.rank=")), "")
    if not rank.isdecimal():
        return []
    return [f"adapter.alpha={2 * int(rank)}"]


def _keys_of(typed: list[str]) -> set[str]:
    return {text.partition("=")[0] for text in typed}


def _has_adapter(typed: list[str]) -> bool:
    return any(text.startswith("adapter=") and text != "adapter=none" for text in typed)


def _setting(name: str, value: Any, table: dict[str, Any]) -> list[str] | None:
    """The overrides of a setting; [LEFT_OUT] where it changes nothing that is estimated, None where it is not known."""
    if name in ROWS:
        typed = _rows(name, value)
        if typed is not None:
            return typed
    if name in ("deepspeed", "fsdp") and value:
        return _parallelism(name, value)
    shown = _shown(value)
    for key in (f"{name}={shown.lower()}", name):
        answer = table["settings"].get(key, keys.arguments().get(key))
        if answer is not None:
            return _answered(answer, shown, for_this_value="=" in key)
    if name in keys.arguments():  # of transformers; nothing takes its place
        return [LEFT_OUT]
    same = [key for key in keys.schema() if key.rpartition(".")[2] == name]
    if len(same) == 1:
        return [f"{same[0]}={shown}"]
    return None


def _answered(answer: str, shown: str, for_this_value: bool) -> list[str]:
    """The overrides that a table has for a setting. answer: as the heads of the tables say. shown: its value."""
    if answer == "":
        return [] if for_this_value else [LEFT_OUT]
    if answer.endswith("."):  # a sentence of advice
        return [LEFT_OUT]
    *before, last = answer.split()
    if "=" not in last:
        if last == "adapter.targets" and not shown.startswith("["):
            shown = f"[{shown}]"
        return [*before, f"{last}={shown}"]
    if for_this_value or shown not in ("false", "null"):
        return [*before, last]
    return []


def _parallelism(name: str, value: Any) -> list[str]:
    """A mode of parallelism that several ranks train in. The number of ranks is the launcher's."""
    if name == "fsdp":
        return ["parallelism=fsdp"]
    stage = ZERO_STAGE.search(PurePosixPath(str(value)).name)
    return ["parallelism=zero", *([f"parallelism.stage={stage[1]}"] if stage else [])]


def _rows(name: str, value: Any) -> list[str] | None:
    """Rows of a file or of the hub; None for a name that only the other trainer's own list knows."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = value[0].get("path")
    if not isinstance(value, str):
        return None
    if value.endswith(SUFFIXES):
        return ["data=chat", f"data.path={value}"]
    if name == "dataset" or "/" not in value:
        return None
    return ["data=hub", "data.task=chat", f"data.path={value}"]


def _one_option_each(reading: Reading) -> None:
    """Keep the last override of each key; qlora includes lora."""
    last: dict[str, str] = {}
    for text in reading.overrides:
        key = text.partition("=")[0]
        if last.get(key) == "adapter=qlora" and text == "adapter=lora":
            continue
        last[key] = text
    reading.overrides = list(last.values())


def _leave_out_what_is_refused(reading: Reading) -> None:
    """Name as unread what this package does not take, such as an optimizer that it does not have."""
    taken = []
    for text in reading.overrides:
        if overrides.problems(overrides.quoted([text]), [], sweeping=False):
            reading.unread.append(text)
        else:
            taken.append(text)
    if not _has_adapter(taken):
        taken = [text for text in taken if not text.startswith("adapter.")]
    if not {"precision=bf16", "precision=fp16"} & set(taken):  # only mixed precision has types of weights
        taken = [text for text in taken if not text.startswith(("precision.base=", "precision.weights="))]
    if not {"precision=bf16", "precision=bf16_pure"} & set(taken):
        taken = [text for text in taken if not text.startswith("precision.adapter=")]
    reading.overrides = taken


def _shown(value: Any) -> str:
    """A value as a person types it in an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_shown(item) for item in value)}]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
