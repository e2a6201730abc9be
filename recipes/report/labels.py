"""What differs between jobs: a record as flat words, and those of them that make a row's label."""

from __future__ import annotations

import json
import re

from recipes.config import LABEL, identity_of
from recipes.records.record import Record

PACKAGES = ("torch", "transformers", "accelerate", "bitsandbytes")


def facts(found: Record) -> dict[str, str]:
    """A record's configuration as flat words, and where it ran: what may tell it from another.

    A group's option stands under the group's name (`optim`), its keys under theirs (`optim.beta1`).
    """
    words = {"experiment": _experiment(found)}
    for section, values in found.config.items():
        for key, value in (values if isinstance(values, dict) else {"name": values}).items():
            words[section if key == "name" else f"{section}.{key}"] = _word(value)
    limit = words.pop("launch.memory_limit_gib", None)
    words = {
        key: value
        for key, value in words.items()
        if key == "experiment" or (not key.startswith("experiment.") and LABEL in identity_of(key))
    }
    if limit is not None:
        words["launch.memory_limit_gib"] = limit  # the last of a label
    environment = found.environment
    words["device"] = _word(environment.get("device", words.get("device")))
    words["device_name"] = _word(environment.get("device_name"))
    words["git_revision"] = _word(environment.get("git_revision"))
    versions = environment.get("versions") or {}
    return words | {name: _word(versions.get(name)) for name in PACKAGES}


def _word(value) -> str:
    """A value as it would be typed."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _experiment(found: Record) -> str:
    """The experiment file that made it (`+experiment/guide=vanilla`: vanilla), or null."""
    told = found.config.get("experiment")
    if isinstance(told, dict):
        told = told.get("name")
    typed = [
        match[1] for match in (re.match(r"\+{0,2}experiment(?:/\w+)*=(.+)", word) for word in found.overrides) if match
    ]
    return _word(told or "+".join(typed) or None)


def _context(key: str, words: dict[str, str]) -> tuple:
    """The facts from which `key` follows. It is worth showing only if it differs between jobs that share them."""
    get, group = words.get, key.split(".")[0]
    if key in ("experiment", "device"):
        return ()
    if key == "device_name":
        return (get("device"),)
    if key in PACKAGES or key == "git_revision":  # only where they tell apart what is otherwise the same
        return tuple(value for name, value in words.items() if name not in PACKAGES and name != "git_revision")
    if key == "train.learning_rate":
        return get("experiment"), get("model"), get("model.pretrained")
    if key == "accumulation.steps" and get("batch.effective", "null") != "null":  # derived from the batch
        return tuple(
            value for name, value in words.items() if name.split(".")[0] in ("experiment", "batch", "parallelism")
        )
    return get("experiment"), get(group) if key != group else None


def label_keys(all_facts: list[dict[str, str]]) -> list[str]:
    """The keys in which jobs differ, without those that merely follow from another one's option."""
    shown = []
    for key in dict.fromkeys(key for words in all_facts for key in words):
        values: dict[tuple, set] = {}
        for words in all_facts:
            if key in words and not (
                key == "train.learning_rate" and words[key] == "null"
            ):  # refused before it was filled in
                values.setdefault(_context(key, words), set()).add(words[key])
        if any(len(several) > 1 for several in values.values()):
            shown.append(key)
    return shown or ["model"]


def label_of(words: dict[str, str], keys: list[str], used: set[tuple[str, str]]) -> dict[str, str]:
    """The label of a job. used: (option, key) of the keys that have a value with some job of that option."""
    label = {}
    for key in keys:
        value, option = words.get(key), words.get(key.split(".")[0])
        unused = value == "null" and option is not None and "." in key and (option, key) not in used
        if value is not None and not unused and (key, value) != ("experiment", "null"):
            label[key] = value
    return label
