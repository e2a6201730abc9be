"""The labels of a table's rows: the keys of the configuration in which the jobs differ."""

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


def facts(found: Record) -> dict[str, str]:
    """A record's configuration and environment as flat text values: everything in which jobs may differ.

    The key of a group's option is the group's name (`optim`), that of a value in it has two parts (`optim.beta1`).
    """
    values = {"experiment": _experiment(found)}
    config = found.config | {"model": model_options.recorded(found.config.get("model") or {})}
    if found.program is not None:
        config = found.config | {"program": found.program.typed}
    elif found.model is not None and config["model"].get("attention") == model_options.AUTO:
        config["model"]["attention"] = found.model.attention
    for section, content in config.items():
        for key, value in (content if isinstance(content, dict) else {"name": content}).items():
            values[printable(section if key == "name" else f"{section}.{key}")] = _text(value)
    limit = values.pop("launch.memory_limit_gib", None)
    values = {
        key: value
        for key, value in values.items()
        if key == "experiment" or (not key.startswith("experiment.") and LABEL in identity_of(key))
    }
    if limit is not None:
        values["launch.memory_limit_gib"] = limit  # the last of a label
    if found.status == "refused":  # what the other jobs derive or look up was not yet there
        values = {key: value for key, value in values.items() if value != "null" or key == "experiment"}
    environment = found.environment
    values["device"] = _text(environment.get("device", values.get("device")))
    if found.status != "refused":
        values["device_name"] = _text(environment.get("device_name"))
    values["git_revision"] = _text(environment.get("git_revision"))
    versions = environment.get("versions") or {}
    return values | {name: _text(versions.get(name)) for name in PACKAGES}


def _text(value: Any) -> str:
    """A value as it is typed on the command line, for a terminal and a table."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    return printable(value if isinstance(value, str) else json.dumps(value, sort_keys=True))


def _experiment(found: Record) -> str:
    """The name of the experiment file (`+experiment/guide=vanilla`: vanilla), or null."""
    matches = [re.match(r"\+{0,2}experiment(?:/\w+)*=(.+)", override) for override in found.overrides]
    return _text("+".join(match[1] for match in matches if match) or None)


def _context(key: str, values: dict[str, str]) -> tuple:
    """The facts that determine the default of `key`: it is shown only if it differs between jobs with the same ones."""
    get, group = values.get, key.split(".")[0]
    if key in ("experiment", "device"):
        return ()
    if key == "device_name":
        return get("device"), get("gpu")  # the card that an estimate is for
    if key in PACKAGES or key == "git_revision":  # only between jobs that differ in nothing else
        return tuple(value for name, value in values.items() if name not in PACKAGES and name != "git_revision")
    if key == "train.learning_rate":
        return get("experiment"), get("model"), get("model.pretrained")
    if key == "data.tokenizer":  # by default that of the model
        return get("experiment"), get("data"), get("model"), get("model.pretrained")
    if key == "parallelism.replicas":  # derived from the number of processes and of machines
        return tuple(value for name, value in values.items() if name.split(".")[0] == "parallelism" and name != key)
    if key == "accumulation.steps" and get("batch.effective", "null") != "null":  # derived from the batch
        return tuple(
            value for name, value in values.items() if name.split(".")[0] in ("experiment", "batch", "parallelism")
        )
    return get("experiment"), get(group) if key != group else None


def label_keys(all_facts: list[dict[str, str]]) -> list[str]:
    """The keys in which jobs differ, without those whose value is determined by another key."""
    shown = []
    for key in dict.fromkeys(key for values in all_facts for key in values):
        if len({values[key] for values in all_facts if key in values}) < 2:
            continue
        by_context: dict[tuple, set] = {}
        for values in all_facts:
            if key in values and (key, values[key]) not in NOT_RESOLVED:
                by_context.setdefault(_context(key, values), set()).add(values[key])
        if any(len(different) > 1 for different in by_context.values()):
            shown.append(key)
    return shown or ["program" if all("program" in values for values in all_facts) else "model"]


def label_of(values: dict[str, str], keys: list[str], used: set[tuple[str | None, str]]) -> dict[str, str]:
    """The label of a job with these facts: key -> value.

    keys: those of the table. used: (option, key) for each key that is not null in some job with that option.
    """
    label = {}
    for key in keys:
        value, option = values.get(key), values.get(key.split(".")[0])
        unused = value == "null" and option is not None and "." in key and (option, key) not in used
        if value is not None and not unused and (key, value) != ("experiment", "null"):
            label[key] = value
    return label


def synonyms(runs: list[Record]) -> str:
    """What was typed for the runs of one row where that differs, beside the seeds; empty where it does not."""

    def names(word: str) -> bool:
        return not word.startswith(REPEATS) and LABEL in identity_of(word.partition("=")[0])

    typed = [{word for each in run.overrides if names(word := each.lstrip("+~"))} for run in runs]
    different = {" ".join(sorted(each - set.intersection(*typed))) for each in typed}
    return "; ".join(sorted(different)) if len(different) > 1 and "" not in different else ""
