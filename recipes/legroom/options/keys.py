"""The keys that a person may type: what exists, and what to type in place of a key that does not exist."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import BooleanNode, FloatNode, IntegerNode, StringNode
from omegaconf.errors import OmegaConfBaseException

from legroom import config
from legroom.options import menus, other_arguments, suggestions
from legroom.paths import CONF
from legroom.third_party import hydra_private

# Every argument of transformers.TrainingArguments: the key that sets it, found by the hooks, or null. Generated:
# python tests/tools/argument_table.py > recipes/legroom/options/argument_names.json
ARGUMENTS_FILE = Path(__file__).with_name("argument_names.json")
KINDS: dict[type, tuple[type, str]] = {
    int: (IntegerNode, "a whole number"),
    float: (FloatNode, "a number"),
    bool: (BooleanNode, "true or false"),
    str: (StringNode, "a text"),
}
FALSE = ("false", "no", "off", "0")
MOST_OPTIONS = 10  # of a menu that a line lists
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


def choices_of(key: str) -> tuple[Any, ...]:
    """The values of a key that has a fixed set of them, without null; empty for any other key."""
    section, _, leaf = key.rpartition(".")
    cls = config.node_types().get(section) if section else config.Config
    fields = dataclasses.fields(cls) if isinstance(cls, type) and dataclasses.is_dataclass(cls) else ()
    found = next((each.metadata.get("choices", ()) for each in fields if each.name == leaf), ())
    return tuple(choice for choice in found if choice is not None)


# --- arguments of transformers ---------------------------------------------------------------------------


@functools.cache
def of_transformers() -> dict[str, str | None]:
    """Every argument of transformers.TrainingArguments -> what sets it, or None; see ARGUMENTS_FILE."""
    return json.loads(ARGUMENTS_FILE.read_text())


@functools.cache
def arguments() -> dict[str, str]:
    """Argument of transformers, or argument=value -> what sets it; see ARGUMENTS_FILE and `other_arguments.TYPED`."""
    return {name: key for name, key in of_transformers().items() if key is not None} | other_arguments.TYPED


def instead_of(key: str, value: str | None) -> str | None:
    """What to type for an argument of transformers, or for a key that lacks its section; None where nothing fits.

    key: `learning_rate`, `seed`. value: as typed; None or '' for a flag without one.
    """
    name = _plain(key)
    named = arguments().get(f"{name}={(value or 'true').lower()}")  # optim=adamw_torch
    if named is not None:
        return named
    chosen = arguments().get(name, name if name in names() else None)
    if chosen is None and "." not in key and name not in other_arguments.ADVICE:
        ends = [each for each in names() if each.rpartition(".")[2] == name]
        chosen = ends[0] if len(ends) == 1 else None
    if chosen is None:
        return None
    if "{}" in chosen:
        before, _, last = chosen.rpartition(" ")
        last = with_value(last.removesuffix("={}"), value) if last.endswith("={}") else last.format(value or "<value>")
        return f"{before} {last}".strip()
    if "=" in chosen:  # an argument that is true or false
        return None if value is not None and value.lower() in FALSE else chosen
    return with_value(chosen, value)


def with_value(key: str, value: str | None) -> str:
    """`key=value`, or what the key takes in place of a value that it does not: `device=<auto|cpu|cuda>`."""
    if is_section(key) and key not in config.GROUPS:
        return f"{key}.<key>=<value>"
    if key == "model" and "/" in (value or ""):
        return f"model.pretrained={value}"
    if value and _takes(key, value):
        return f"{key}={value}"
    if key in config.GROUPS:
        options = list(menus.options(key, [CONF]))
        return f"{key}=<{'|'.join(options)}>" if value and len(options) <= MOST_OPTIONS else f"{key}=<option>"
    kind, choices = (type_of(key) or (None, False))[0], choices_of(key)
    if kind is bool and not value:
        return f"{key}=true"
    if choices:
        return f"{key}=<{'|'.join(map(str, choices))}>"
    if kind in KINDS:
        return f"{key}=<{KINDS[kind][1]}>" if value else f"{key}=<value>"
    if typing.get_origin(kind) is dict:
        return f"{key}.<name>=<value>"
    listed = typing.get_origin(kind) is list and not (value or "").startswith("[")
    return f"{key}=[{value or '<value>'}]" if listed else f"{key}={value or '<value>'}"  # the latter: hydra.run.dir


def _takes(key: str, value: str) -> bool:
    """Whether a typed value is an option of a menu, or a value of a key by its type and its choices."""
    if key in config.GROUPS:
        return value in menus.options(key, [CONF])
    kind = type_of(key)
    if kind is None or kind[0] not in KINDS:
        return False
    try:
        values = hydra_private.values_of(hydra_private.parse_override(f"{key}={value}"))
    except (HydraException, ValueError, RecursionError):
        return kind[0] is str and not choices_of(key)  # a path with letters that need quotes
    return values is None or all(_is_of(kind, choices_of(key), each) for each in values)


def _is_of(kind: tuple[Any, bool], choices: tuple[Any, ...], value: Any) -> bool:
    if value is None or kind[0] is str and isinstance(value, (bool, list, dict)):
        return value is None and kind[1]
    try:
        KINDS[kind[0]][0](value=value)
        return not choices or str(value) in map(str, choices)
    except (OmegaConfBaseException, ValueError, OverflowError):
        return False


def _plain(key: str) -> str:
    return key.lstrip("-").replace("-", "_").lower()


# --- a key that does not exist ---------------------------------------------------------------------------


def unknown(key: str, value: str | None = None) -> str:
    """The line for a key that does not exist. value: what was typed for it."""
    key = key.lstrip("+~")
    head, _, tail = key.partition(".")
    what = "menu or key" if not tail else "key"
    if head == "hydra":
        return f"{suggestions.shown(key)}: Hydra has no such key. --cfg hydra lists its keys."
    return f"{suggestions.shown(key)}: there is no such {what}.{suggestion(key, value)}"


def suggestion(key: str, value: str | None) -> str:
    """' Type train.seed=3.', ' Did you mean ...?' or what else helps with a key that does not exist."""
    head, _, tail = key.partition(".")
    known = known_argument(key, value)
    if known is not None:
        return known
    name, candidates = _plain(key), list(names())
    of_section = next((known for each in (f"{head}_{tail}", tail) if (known := _by_name(each, value))), None)
    if tail and of_section is not None:  # train.lr, eval.batch_size, optim.weight_decay
        return of_section
    if tail and is_section(head):  # a misspelt key of an existing menu or section: only its keys are suggested
        candidates = [each for each in candidates if each.startswith(head + ".")] or candidates
        return suggestions.nearest(key, candidates) or f" {head} has {', '.join(candidates)}."
    ends = [each for each in candidates if "." in each and each.rpartition(".")[2] == (tail or name)]
    if ends:
        return f" Did you mean {' or '.join(ends)}?"
    argument = suggestions.closest(name, [*candidates, *(each for each in arguments() if "=" not in each)])
    instead = instead_of(argument, value) if argument in arguments() else None
    if instead is not None:
        return f" Did you mean {suggestions.shown(instead)}?"
    near = suggestions.nearest(key, candidates) or suggestions.nearest(name, candidates)
    return near or " --help lists all."


def _by_name(name: str, value: str | None) -> str | None:
    """`known_argument` of a name that is one of transformers or of another trainer, whatever keys are called here."""
    return known_argument(name, value) if _plain(name) in (*arguments(), *other_arguments.ADVICE) else None


def known_argument(key: str, value: str | None) -> str | None:
    """What helps with an argument of transformers, or with a key that lacks its section; None for any other name."""
    instead, name = instead_of(key, value), _plain(key)
    if instead is not None:
        return f" Type {suggestions.shown(instead)}."
    if name in arguments():
        return f" Leave it out; the opposite is {arguments()[name]}."
    if name in other_arguments.ADVICE:
        return f" {other_arguments.ADVICE[name]}"
    if name in of_transformers() or name in other_arguments.WITHOUT_COUNTERPART:
        return " It is an argument of transformers, and nothing takes its place here."
    return None
