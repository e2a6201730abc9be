"""The table of transformers.TrainingArguments' names and the keys that set them, found by calling the hooks.

`python tests/tools/argument_table.py > recipes/legroom/options/argument_names.json` writes it; a test compares the two.
It is a file because calling every hook for every key takes longer than a refusal may.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import checkout  # noqa: F401 - `legroom` beside this file

from legroom import config
from legroom.config import GROUPS, Config
from legroom.options import compose, keys, menus, training_arguments
from legroom.paths import CONF

FOLDER_KEY = "hydra.run.dir"  # what the argument of the folder is called on the command line
VALUES = {int: 7919, float: 0.671875, str: "a text"}  # values that no default has


def table() -> dict[str, str | None]:
    """Argument -> the key that sets it, or `key=value` for one that is true or false; None where no hook sets it.

    `optim=adamw_torch` -> `optim=adamw`: an argument whose values are the options of a menu.
    """
    from transformers import TrainingArguments

    base = compose.compose(CONF, "device=cpu")[0]
    assert base is not None
    base.device = "cuda"  # where every argument has a meaning; `host.device` believes it
    before = _entries(base)
    found: dict[str, str | None] = {name: FOLDER_KEY for name, value in before.items() if value == FOLDER_KEY}
    for key, cfg, value in _other_values(base):
        for name, entry in _entries(cfg).items():
            if entry is True and before.get(name) is not True and (value is True or isinstance(value, str)):
                found.setdefault(name, f"{key}={_text(value)}")
            elif entry == value != before.get(name) and type(entry) is type(value):
                found.setdefault(name, key)
    for group in GROUPS:
        found |= _of_options(group, base, before)
    nothing = dict.fromkeys(each.name for each in dataclasses.fields(TrainingArguments))
    return dict(sorted((nothing | found).items()))


def _entries(cfg: Config) -> dict[str, Any]:
    found = training_arguments.entries(cfg, FOLDER_KEY)
    return {name: entry for name, entry in found.items() if type(entry) in (bool, *VALUES)}


def _other_values(base: Config) -> Iterator[tuple[str, Config, Any]]:
    """(key, configuration, value): the configuration with every key in turn at another value."""
    for key in keys.names():
        found = keys.type_of(key)
        if found is None or found[0] not in (bool, *VALUES) or key.rpartition(".")[2] in menus.MENUS_OWN:
            continue
        section, _, leaf = key.rpartition(".")
        for value in _values(getattr(base, section) if section else base, leaf, found[0]):
            cfg = copy.deepcopy(base)
            setattr(getattr(cfg, section) if section else cfg, leaf, value)
            yield key, cfg, value


def _of_options(group: str, base: Config, before: dict[str, Any]) -> dict[str, str]:
    """The arguments that the options of a menu set to true, or to a name that differs from option to option."""
    found, by_option = {}, {}
    for option in menus.options(group, [CONF]):
        cfg = copy.deepcopy(base)
        values = menus.option_values(group, option, [CONF])
        setattr(cfg, group, config.from_dict(values, config.node_types()[group]))
        by_option[option] = _entries(cfg)
    differs = {name for name in before if len({each.get(name) for each in by_option.values()}) > 1}
    for option, entries in by_option.items():
        for name, entry in entries.items():
            if entry is True and before.get(name) is not True:
                found.setdefault(name, f"{group}={option}")  # fp8 sets bf16 too, for the rest of the passes
            elif isinstance(entry, str) and name in differs:
                found.setdefault(f"{name}={entry}", f"{group}={option}")  # muon names AdamW's too, for other weights
    return found


def _values(node: Any, leaf: str, kind: type) -> list[Any]:
    """Other values for a key: each of its choices, or one that no default has."""
    rule = next(each.metadata for each in dataclasses.fields(node) if each.name == leaf)
    now = getattr(node, leaf)
    if "choices" in rule:
        return [choice for choice in rule["choices"] if choice not in (None, now, "auto")]
    return [not now] if kind is bool else [VALUES[kind]]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    print(json.dumps(table(), indent=1))
