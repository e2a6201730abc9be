"""The keys that a person may type: what exists, and what to type in place of a key that does not exist."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from pathlib import Path
from typing import Any

from recipes import config
from recipes.options import suggestions

# The arguments of transformers.TrainingArguments and the keys that set them, generated from the hooks:
# python -m recipes.cli.argument_table > recipes/options/argument_names.json
ARGUMENTS_FILE = Path(__file__).with_name("argument_names.json")
# Arguments of transformers' example scripts, a name that TrainingArguments had before, and a common abbreviation.
OTHER_ARGUMENTS = {
    "activation_checkpointing": "checkpointing=full",
    "gradient_checkpointing": "checkpointing=full",
    "torch_compile_mode": "compile_mode",
    "lr": "train.learning_rate",
    "model_name_or_path": "model.pretrained",
    "train_file": "data.path",
    "validation_file": "data.eval_path",
    "max_seq_length": "data.seq_len",
    "block_size": "data.seq_len",
}
TRUE, FALSE = ("", "true", "yes", "on", "1"), ("false", "no", "off", "0")
NOT_TYPED = ("name", "facts")


@functools.cache
def names() -> tuple[str, ...]:
    """Every menu, section, plain key and `section.key`."""
    kinds = config.node_types()
    found = list(kinds)
    for name, kind in kinds.items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            found += [f"{name}.{leaf}" for leaf in config.node_types(kind) if leaf not in NOT_TYPED]
    return tuple(found)


def is_section(key: str) -> bool:
    """Whether a key is a menu or a section, whose keys are set one by one."""
    kind = config.node_types().get(key)
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def type_of(key: str) -> tuple[Any, bool] | None:
    """(type, whether null is a value) of a key with a value; None for a menu, a section or an unknown key."""
    section, _, leaf = key.partition(".")
    cls: Any = config.Config
    if leaf:
        if not is_section(section):
            return None
        cls = config.node_types()[section]
    hint = typing.get_type_hints(cls).get(leaf or section)
    if hint is None or is_section(key):
        return None
    return config.node_types(cls)[leaf or section], type(None) in typing.get_args(hint)


def mapping_of(key: str) -> str | None:
    """`optim.args` of `optim.args` and `optim.args.rank`: the key whose value is a mapping, or None."""
    parent = ".".join(key.split(".")[:2])
    found = type_of(parent)
    return parent if found is not None and typing.get_origin(found[0]) is dict else None


@functools.cache
def arguments() -> dict[str, str]:
    """Argument of transformers -> the key that sets it; see ARGUMENTS_FILE."""
    return json.loads(ARGUMENTS_FILE.read_text()) | OTHER_ARGUMENTS


def instead_of(key: str, value: str | None) -> str | None:
    """What to type for an argument of transformers, or for a key that lacks its section; None where nothing fits.

    key: `learning_rate`, `seed`. value: as typed; None or '' for a flag without one.
    """
    name = key.lstrip("-").replace("-", "_").lower()
    if f"{name}={value}" in arguments():  # an argument whose value names an option: optim=adamw_torch
        return arguments()[f"{name}={value}"]
    chosen = arguments().get(name, name if name in names() and name != key else None)
    if chosen is None and "." not in key:
        ends = [each for each in names() if each.rpartition(".")[2] == name]
        chosen = ends[0] if len(ends) == 1 else None
    if chosen is None:
        return None
    if "=" in chosen:  # an argument that is true or false
        return chosen if value is None or value.lower() in TRUE else None
    if is_section(chosen):
        return f"{chosen}=<option>" if not value else f"{chosen}={value}"
    return f"{chosen}={value or '<value>'}"


def unknown(key: str, value: str | None = None) -> str:
    """The line for a key that does not exist. value: what was typed for it."""
    key = key.lstrip("+~")
    head, _, tail = key.partition(".")
    what = "menu or key" if not tail else "key"
    if head == "hydra":
        return f"{suggestions.shown(key)}: Hydra has no such key. python train.py --cfg hydra lists its keys."
    return f"{suggestions.shown(key)}: there is no such {what}.{suggestion(key, value)}"


def suggestion(key: str, value: str | None) -> str:
    """' Type train.seed=3.', ' Did you mean ...?' or what else helps with a key that does not exist."""
    head, _, tail = key.partition(".")
    instead = instead_of(key, value)
    if instead is not None:
        return f" Type {suggestions.shown(instead)}."
    name = key.lstrip("-").replace("-", "_").lower()
    if (value or "").lower() in FALSE and "=" in arguments().get(name, ""):
        return f" Leave it out; the opposite is {arguments()[name]}."
    candidates = list(names())
    if tail and is_section(head):  # a misspelt key of an existing menu or section: only its keys are suggested
        candidates = [each for each in candidates if each.startswith(head + ".")] or candidates
        return suggestions.nearest(key, candidates) or f" {head} has {', '.join(candidates)}."
    ends = [each for each in candidates if "." in each and each.rpartition(".")[2] == (tail or name)]
    if ends:
        return f" Did you mean {' or '.join(ends)}?"
    near = suggestions.nearest(key, candidates) or suggestions.nearest(name, [*candidates, *arguments()])
    return near or " python train.py --help lists all."
