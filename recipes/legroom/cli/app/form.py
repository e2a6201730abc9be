"""What a person can choose in the app, and the command line that it stands for."""

import functools
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legroom import paths, yaml_table
from legroom.cli import help_text
from legroom.cli.app import model_name
from legroom.errors import Refusal
from legroom.machine import gpu_specs
from legroom.options import known_models, model_names, other_trainers, presets

_TITLES = yaml_table.beside(__file__)
MENUS: dict[str, str] = _TITLES["menus"]
MODES: dict[str, str] = _TITLES["modes"]
# Numbers: key -> (title, default, largest).
NUMBERS = {
    "data.seq_len": ("Tokens per row, at most", 512, 2**20),
    "batch.per_device": ("Rows per GPU (batch)", 4, 2**14),
    "accumulation.steps": ("Accumulation steps", 1, 2**12),
}
# Overrides that a pasted text may add: what changes the memory of a step and has no field of its own.
MORE = {
    "adapter.alpha",
    "adapter.bits",
    "adapter.dora",
    "adapter.dropout",
    "adapter.rslora",
    "adapter.targets",
    "kernels",
    "model.attention",
    "parallelism.stage",
}
MORE_VALUE = re.compile(r"[\w.,\[\]-]{1,200}")
RANK = ("adapter.rank", "Rank of the adapter", 16, 2**12)  # with an adapter
LIMIT = ("launch.memory_limit_gib", "Limit of its memory in GiB", None, 2**10)
MOST_GPUS = 1024
MOST_CONFIG_BYTES = 2**16


@dataclass
class Form:
    """The choices of the page.

    folders: of models, named when the app was started; no other folder can be read through it. pasted: where a
    config.json that was pasted is put.
    """

    pasted: Path
    folders: list[Path] = field(default_factory=list)

    def choices(self) -> dict[str, Any]:
        """What the page offers, in JSON's types."""
        return {
            "models": self._models(),
            "presets": [_of_preset(preset) for preset in presets.presets()],
            "gpus": gpus(),
            "menus": [{"key": key, "title": title, "options": _options(key)} for key, title in MENUS.items()],
            "rank": dict(zip(("key", "title", "value", "largest"), RANK)),
            "limit": dict(zip(("key", "title", "value", "largest"), LIMIT)),
            "modes": [{"name": name, "title": title} for name, title in MODES.items()],
            "numbers": [dict(zip(("key", "title", "value", "largest"), (key, *NUMBERS[key]))) for key in NUMBERS],
        }

    def _models(self) -> list[dict[str, str]]:
        models = []
        for name, (about, source) in known_models.known().items():
            title = f"{about} · {source}" if about and source else about or source
            models.append({"name": name, "title": title})
        for folder in self.folders:
            models.append({"name": str(folder), "title": "folder"})
        return models

    def overrides(self, values: Any) -> list[str]:
        """The command line of what was chosen. values: from the page. Raises Refusal for what it does not offer."""
        if not isinstance(values, dict):
            raise Refusal("The request is not an object of choices.")
        overrides = [
            "recipe=estimate",
            *self._model(values),
            f"gpu={_one_of(values, 'gpu', [g['name'] for g in gpus()])}",
        ]
        for key in MENUS:
            names = [option["name"] for option in _options(key)]
            if values.get(key) is None:
                continue
            chosen = _one_of(values, key, names)
            if chosen != names[0]:
                overrides.append(f"{key}={chosen}")
        for key, (title, _, largest) in NUMBERS.items():
            number = _number(values, key, title, largest)
            if key != "accumulation.steps" or number > 1:
                overrides.append(f"{key}={number}")
        key, title, _, largest = RANK
        if key in values and any(text.startswith("adapter=") for text in overrides):
            overrides.append(f"{key}={_number(values, key, title, largest)}")
        count = _number({"gpus": 1} | values, "gpus", "Number of GPUs", MOST_GPUS)
        if count > 1:
            mode = _one_of({"mode": "fsdp"} | values, "mode", list(MODES))
            overrides += [f"parallelism={mode}", f"parallelism.num_processes={count}"]
        key, title, _, largest = LIMIT
        limit = values.get(key)
        if limit is not None:
            if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= largest:
                raise Refusal(f"{title} must be a number above 0 and at most {largest:,}.")
            overrides.append(f"{key}={limit:g}")
        overrides += _more(values.get("more", []))
        if values.get("explain") is True:
            overrides.append("estimate.explain=true")
        return overrides

    def _model(self, values: dict[str, Any]) -> list[str]:
        chosen = values.get("model") or ""
        if values.get("config"):
            if chosen:
                raise Refusal("A model is named, and a config.json is pasted: leave one of them out.")
            return [f"model.pretrained={self._paste(values['config'])}"]
        if chosen in map(str, self.folders):
            return [f"model.pretrained={_quoted(Path(chosen))}"]
        if not isinstance(chosen, str):
            raise Refusal("model: it must be a text.")
        return model_name.overrides(chosen)

    def named(self, values: dict[str, Any], overrides: list[str], result: dict[str, Any]) -> dict[str, Any]:
        """A result with the name of its model, and with a command that can be typed.

        The command for a pasted config.json can be typed once that is saved.
        """
        model = next(text for text in overrides if text.startswith("model"))
        key, _, name = model.partition("=")
        if values.get("config"):
            command = result.get("command", "").replace(model, f"{key}=pasted-model")
            note = "# save the pasted text as pasted-model/config.json first\n"
            return result | {"model": "The pasted config.json", "command": note + command}
        option = model_names.option(name) if key == "model.pretrained" else name
        about, source = known_models.known().get(option or "", ("", ""))
        if about and source and source != name:
            name = f"{name} with the sizes of {source}"
        return result | {"model": name}

    def _paste(self, text: Any) -> Path:
        """The folder with a config.json that was pasted; equal texts have the same. Raises Refusal."""
        if not isinstance(text, str) or len(text.encode()) > MOST_CONFIG_BYTES:
            raise Refusal(f"The config.json must be a text of at most {MOST_CONFIG_BYTES // 1024} KiB.")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refusal(f"What was pasted is not JSON: {error}") from error
        if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
            raise Refusal("What was pasted has no model_type. Paste the config.json of a model of transformers.")
        folder = self.pasted / hashlib.sha256(text.encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(text)
        return folder


def read(text: Any) -> dict[str, Any]:
    """What a text that is meant for another trainer says: values of the form's fields, and what became of the rest.

    Returns trainer; values; more: overrides for the estimate without a field; rest: those for the training alone;
    assumed, left_out, unread: see `other_trainers.Reading`. Raises Refusal for a text of no known trainer.
    """
    if not isinstance(text, str):
        raise Refusal("What was pasted must be a text.")
    reading = other_trainers.read(text)
    values, others = _fields(reading.overrides)
    more = [override for override in others if override.partition("=")[0] in MORE]
    return {
        "trainer": reading.trainer,
        "values": values,
        "more": more,
        "rest": [override for override in others if override not in more],
        "assumed": reading.assumed,
        "left_out": reading.left_out,
        "unread": reading.unread,
    }


def _fields(overrides: list[str]) -> tuple[dict[str, Any], list[str]]:
    """(the values of the form's fields, the overrides that are none of them)."""
    values: dict[str, Any] = {}
    others = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key in ("model", "model.pretrained"):
            values["model"] = value
        elif key in MENUS or key in NUMBERS or key == RANK[0]:
            values[key] = int(value) if value.isdecimal() else value
        elif key == "parallelism" and value in MODES:
            values |= {"mode": value, "gpus": 2}
        elif key == "parallelism.num_processes":
            values["gpus"] = int(value)
        else:
            others.append(override)
    return values, others


def _of_preset(preset: presets.Preset) -> dict[str, Any]:
    """A preset as the page offers it: name, title, the values of the form's fields."""
    values = yaml_table.read(paths.CONF / "experiment" / f"{preset.name}.yaml")
    chosen = []
    for entry in values["defaults"]:
        chosen += [f"{menu.removeprefix('override /')}={option}" for menu, option in entry.items()]
    chosen.append(f"model.pretrained={values['model']['pretrained']}")
    chosen.append(f"data.seq_len={values['data']['seq_len']}")
    per_device, effective = values["batch"]["per_device"], values["batch"]["effective"]
    chosen.append(f"batch.per_device={per_device}")
    chosen.append(f"accumulation.steps={effective // (per_device * preset.gpus)}")
    fields, _ = _fields(chosen)
    return {"name": preset.name, "title": preset.about, "values": fields | {"gpu": preset.gpu, "gpus": preset.gpus}}


def _more(texts: Any) -> list[str]:
    """Overrides that a pasted text has added. Raises Refusal for others than those in MORE."""
    if not isinstance(texts, list):
        raise Refusal("more: it must be a list of overrides.")
    for text in texts:
        key, _, value = str(text).partition("=")
        if key not in MORE or not MORE_VALUE.fullmatch(value):
            raise Refusal(f"{str(text)[:100]} cannot be set in the app.")
    return [str(text) for text in texts]


@functools.cache
def gpus() -> list[dict[str, Any]]:
    """Every GPU of the menu, the smallest first: name, device_name and memory_bytes."""
    cards = []
    for name, values in gpu_specs.options().items():
        cards.append({"name": name, "device_name": values["device_name"], "memory_bytes": values["memory_bytes"]})
    return sorted(cards, key=lambda card: (card["memory_bytes"], card["name"]))


@functools.cache
def _options(menu: str) -> list[dict[str, Any]]:
    """The options of a menu, the default one first, each with the first line of its YAML, which says what it is."""
    files = help_text.options_of(paths.CONF, menu)
    return [{"name": path.stem, "title": help_text.first_line(path)} for path in files]


def _one_of(values: dict[str, Any], key: str, names: list[str]) -> str:
    chosen = values.get(key)
    if chosen not in names:
        raise Refusal(f"{key}: choose one of {', '.join(names)}.")
    return chosen


def _number(values: dict[str, Any], key: str, title: str, largest: int) -> int:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise Refusal(f"{title} must be a whole number from 1 to {largest:,}.")
    return value


def _quoted(path: Path) -> str:
    """A path as Hydra reads it as one text."""
    escaped = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
