"""The labels of a table's rows: the keys of the configuration in which the jobs differ."""

import functools
import json
import re
from typing import Any

from legroom.config import identity_of
from legroom.config.fields import LABEL
from legroom.options import model as model_options
from legroom.records.printable import printable
from legroom.records.record import Record

# Facts of a job that was refused before they were determined.
NOT_RESOLVED = (("train.learning_rate", "null"), ("model.attention", model_options.AUTO))
REPEATS = ("train.seed=", "measure.repeat", "hydra.")  # what may differ between the repeats of a job
PACKAGES = ("torch", "transformers", "accelerate", "bitsandbytes")
VERSIONS = (*PACKAGES, "git_revision")
MEMORY_LIMIT = "launch.memory_limit_gib"
_JSON = json.JSONEncoder(sort_keys=True)  # json.dumps would make one for each value of each record


def facts(record: Record) -> dict[str, str]:
    """A record's configuration and environment as flat text values: everything in which jobs may differ.

    The key of a group's option is the group's name (`optim`), that of a value in it has two parts (`optim.beta1`).
    """
    values = _configuration_facts(record)
    environment = record.environment
    refused = record.status == "refused"
    if refused:  # what the other jobs derive or look up was not yet there
        values = {key: value for key, value in values.items() if value != "null" or key == "experiment"}
    values["device"] = _text(environment.get("device", values.get("device")))
    if not refused:
        values["device_name"] = _text(environment.get("device_name"))
    values["git_revision"] = _text(environment.get("git_revision"))
    versions = environment.get("versions") or {}
    for package in PACKAGES:
        values[package] = _text(versions.get(package))
    return values


def _configuration_facts(record: Record) -> dict[str, str]:
    """The keys of a record's configuration that may stand in a label, and its experiment."""
    values = {"experiment": _experiment(record)}
    for section, content in _configuration(record).items():
        if not isinstance(content, dict):
            content = {"name": content}
        for key, value in content.items():
            label_key = _label_key(section, key)
            if label_key is not None:
                values[label_key] = _text(value)
    limit = values.pop(MEMORY_LIMIT, None)
    if limit is not None:
        values[MEMORY_LIMIT] = limit  # the last of a label
    return values


@functools.lru_cache(maxsize=4096)  # the same few hundred keys in each of thousands of records
def _label_key(section: str, key: str) -> str | None:
    """The key of a value in a label; None for one that no label shows."""
    full_key = printable(section if key == "name" else f"{section}.{key}")
    if full_key in ("experiment", MEMORY_LIMIT):
        return full_key
    if full_key.startswith("experiment.") or LABEL not in identity_of(full_key):
        return None
    return full_key


def _configuration(record: Record) -> dict[str, Any]:
    """A record's configuration, with the program of `legroom check`, or the attention that `auto` chose."""
    if record.program is not None:
        return record.config | {"program": record.program.typed}
    model = model_options.recorded(record.config.get("model") or {})
    if record.model is not None and model.get("attention") == model_options.AUTO:
        model["attention"] = record.model.attention
    return record.config | {"model": model}


def _text(value: Any) -> str:
    """A value as it is typed on the command line, for a terminal and a table."""
    if isinstance(value, str):
        return printable(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return printable(_JSON.encode(value))


def _experiment(record: Record) -> str:
    """The name of the experiment file (`+experiment/guide=vanilla`: vanilla), or null."""
    names = []
    for override in record.overrides:
        match = re.match(r"\+{0,2}experiment(?:/\w+)*=(.+)", override)
        if match:
            names.append(match[1])
    if not names:
        return "null"
    return printable("+".join(names))


def _context(key: str, values: dict[str, str]) -> tuple:
    """The facts that determine the default of `key`: it is shown only if it differs between jobs with the same ones."""

    def of(*names: str) -> tuple:
        return tuple(values.get(name) for name in names)

    group = key.split(".")[0]
    if key in ("experiment", "device"):
        return ()
    if key == "device_name":
        return of("device", "gpu")  # the card that an estimate is for
    if key in VERSIONS:  # only between jobs that differ in nothing else
        return tuple(value for name, value in values.items() if name not in VERSIONS)
    if key == "train.learning_rate":
        return of("experiment", "model", "model.pretrained")
    if key == "data.tokenizer":  # by default that of the model
        return of("experiment", "data", "model", "model.pretrained")
    if key == "parallelism.replicas":  # derived from the number of processes and of machines
        return tuple(value for name, value in values.items() if name.split(".")[0] == "parallelism" and name != key)
    if key == "accumulation.steps" and values.get("batch.effective", "null") != "null":  # derived from the batch
        groups = ("experiment", "batch", "parallelism")
        return tuple(value for name, value in values.items() if name.split(".")[0] in groups)
    if key == group:
        return (values.get("experiment"), None)
    return of("experiment", group)


def label_keys(all_facts: list[dict[str, str]]) -> list[str]:
    """The keys in which jobs differ, without those whose value is determined by another key."""
    keys: dict[str, None] = {}  # in the order in which they occur first
    for values in all_facts:
        keys |= dict.fromkeys(values)
    shown = [key for key in keys if _differs(key, all_facts)]
    if shown:
        return shown
    if all("program" in values for values in all_facts):
        return ["program"]
    return ["model"]


def _differs(key: str, all_facts: list[dict[str, str]]) -> bool:
    """Whether the value of `key` differs between jobs that are the same in what determines its default."""
    with_key = [values for values in all_facts if key in values]
    if len({values[key] for values in with_key}) < 2:
        return False
    by_context: dict[tuple, set[str]] = {}
    for values in with_key:
        if (key, values[key]) not in NOT_RESOLVED:
            by_context.setdefault(_context(key, values), set()).add(values[key])
    return any(len(different) > 1 for different in by_context.values())


def label_of(values: dict[str, str], keys: list[str], used: set[tuple[str | None, str]]) -> dict[str, str]:
    """The label of a job with these facts: key -> value.

    keys: those of the table. used: (option, key) for each key that is not null in some job with that option.
    """
    label = {}
    for key in keys:
        value = values.get(key)
        if value is None or (key, value) == ("experiment", "null"):
            continue
        option = values.get(key.split(".")[0])
        if value == "null" and "." in key and option is not None and (option, key) not in used:
            continue  # the option does not use the key
        label[key] = value
    return label


def synonyms(runs: list[Record]) -> str:
    """What was typed for the runs of one row where that differs, beside the seeds; empty where it does not."""
    typed = []
    for run in runs:
        overrides = {override.lstrip("+~") for override in run.overrides}
        typed.append({override for override in overrides if _in_label(override)})
    common = set.intersection(*typed)
    different = {" ".join(sorted(overrides - common)) for overrides in typed}
    if len(different) < 2 or "" in different:
        return ""
    return "; ".join(sorted(different))


def _in_label(override: str) -> bool:
    """Whether an override may stand in a label, and tells no repeats apart."""
    return not override.startswith(REPEATS) and LABEL in identity_of(override.partition("=")[0])
