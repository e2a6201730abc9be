"""The keys that a person may type: what exists, and what to type in place of a key that does not exist."""

import dataclasses
import functools
import typing
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import BooleanNode, FloatNode, IntegerNode, StringNode
from omegaconf.errors import OmegaConfBaseException

from legroom import config, yaml_table
from legroom.compat import hydra_private
from legroom.options import menus, suggestions
from legroom.paths import CONF

# What is typed here for the arguments of transformers and of other trainers
ARGUMENTS_FILE = Path(__file__).with_name("arguments.yaml")
NODES: dict[type, type] = {int: IntegerNode, float: FloatNode, bool: BooleanNode, str: StringNode}
WHAT = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a mapping from names to values",
}
FALSE = ("false", "no", "off", "0")
MOST_OPTIONS = 10  # of a menu that a line lists


class Rule(NamedTuple):
    """What the schema says of a key. kind: its type. optional: null is a value. choices: empty where any value is."""

    kind: Any
    optional: bool
    choices: tuple[str, ...]


@functools.cache
def schema() -> dict[str, Rule]:
    """The rule of every menu, section, plain key and `section.key` that a person may set."""
    found = _rules(config.Config, "")
    for name, rule in list(found.items()):
        if dataclasses.is_dataclass(rule.kind):
            found |= _rules(rule.kind, f"{name}.")
    return {name: rule for name, rule in found.items() if name.rpartition(".")[2] not in menus.MENUS_OWN}


def _rules(cls: Any, section: str) -> dict[str, Rule]:
    kinds, hints = config.node_types(cls), typing.get_type_hints(cls)
    return {
        f"{section}{each.name}": Rule(
            typing.get_origin(kinds[each.name]) or kinds[each.name],
            type(None) in typing.get_args(hints[each.name]),
            tuple(str(choice) for choice in each.metadata.get("choices", ()) if choice is not None),
        )
        for each in dataclasses.fields(cls)
    }


def is_section(key: str) -> bool:
    """Whether a key is a menu or a section, whose keys are set one by one."""
    return key in schema() and dataclasses.is_dataclass(schema()[key].kind)


def rule_of(key: str) -> Rule | None:
    """The rule of a key with a value; None for a menu, a section or an unknown key."""
    return None if is_section(key) else schema().get(key)


def mapping_of(key: str) -> str | None:
    """`optim.args` of `optim.args` and `optim.args.rank`: the key whose value is a mapping, or None."""
    parent = ".".join(key.split(".")[:2])
    rule = rule_of(parent)
    return parent if rule is not None and rule.kind is dict else None


# --- the value of a key -----------------------------------------------------------------------------------


def parsed(text: str) -> Override | None:
    """An override as Hydra's grammar reads it; None where it cannot."""
    try:
        return hydra_private.parse_override(text)
    except (HydraException, ValueError, RecursionError):  # ValueError: of a function, as in int(x)
        return None


def fits(rule: Rule, value: Any) -> bool:
    """Whether a key takes a parsed value, by its type."""
    kind = rule.kind
    if kind is Any or (isinstance(value, str) and "${" in value):  # what may be typed, its option knows
        return True
    if value is None or kind is dict:
        return rule.optional if value is None else isinstance(value, dict)
    if kind is list:
        return isinstance(value, list) and not any(one is None or isinstance(one, (list, dict)) for one in value)
    if kind is str and isinstance(value, (bool, list, dict)):
        return False
    try:
        NODES[kind](value=value)
    except (OmegaConfBaseException, ValueError, OverflowError):
        return False
    return True


def with_value(key: str, value: str | None) -> str:
    """`key=value`, or what the key takes in place of a value that it does not: `device=<auto|cpu|cuda>`."""
    if key == "model" and "/" in (value or ""):
        return f"model.pretrained={value}"
    if key in config.GROUPS:
        rule = Rule(str, False, tuple(menus.options(key, [CONF])))
    elif is_section(key):
        return f"{key}.<key>=<value>"
    else:
        rule = schema().get(key, Rule(str, False, ()))  # hydra.run.dir
    if rule.kind is dict:
        return f"{key}.<name>=<value>"
    if rule.kind is list and not (value or "").startswith("["):
        return f"{key}=[{value if value and parsed(f'{key}=[{value}]') else '<value>'}]"
    value = value or ("true" if rule.kind is bool else None)
    if value and _takes(rule, value):
        return f"{key}={value}"
    if rule.choices:
        return f"{key}=<{'|'.join(rule.choices) if len(rule.choices) <= MOST_OPTIONS else 'option'}>"
    return f"{key}=<{WHAT.get(rule.kind, 'value') if value else 'value'}>"


def _takes(rule: Rule, value: str) -> bool:
    """Whether a typed value, or each one of a sweep, is of a key's type and choices."""
    override = parsed(f"key={value}")
    if override is None:
        return rule.kind is str and not rule.choices  # a path with letters that need quotes
    values = hydra_private.values_of(override) or ()
    return all(fits(rule, each) and (not rule.choices or str(each) in rule.choices) for each in values)


# --- a key that does not exist ---------------------------------------------------------------------------


@functools.cache
def arguments() -> dict[str, str | None]:
    """Argument of transformers, or argument=value -> what is said of it, as the head of ARGUMENTS_FILE describes."""
    return yaml_table.read(ARGUMENTS_FILE)


def unknown(key: str, value: str | None = None) -> str:
    """The line for a key that does not exist. value: what was typed for it."""
    key = key.lstrip("+~")
    if key.partition(".")[0] == "hydra":
        return f"{suggestions.shown(key)}: Hydra has no such key. --cfg hydra lists its keys."
    what = "key" if "." in key else "menu or key"
    return f"{suggestions.shown(key)}: there is no such {what}.{suggestion(key, value)}"


def suggestion(key: str, value: str | None) -> str:
    """' Type train.seed=3.', ' Did you mean ...?' or what else helps with a key that does not exist."""
    head, _, tail = key.partition(".")
    name, known = _plain(key), [*schema(), *(each for each in arguments() if "=" not in each)]
    for each in (name, _plain(f"{head}_{tail}"), _plain(tail)):  # optim.weight_decay, eval.batch_size, train.lr
        if (said := _known(each, value)) is not None:
            return said
    argument = suggestions.closest(name, known)
    if argument in arguments():
        return f" Did you mean {argument}?{_known(argument, value)}"
    if tail and is_section(head):  # a misspelt key of an existing menu or section: only its keys are suggested
        own = [each for each in schema() if each.startswith(head + ".")]
        listed = f" {head} has {', '.join(own)}." if own else f" {head} has no keys: type {head}=<option>."
        return suggestions.nearest(key, own) or listed
    return suggestions.nearest(name, schema()) or " --help all lists them."


def _known(name: str, value: str | None) -> str | None:
    """What to type for an argument of transformers, a key, or one without its section; None for any other name."""
    table, ends = arguments(), [each for each in schema() if each.rpartition(".")[2] == name]
    said = table.get(f"{name}={(value or 'true').lower()}")
    if said is None and name in table:
        said = table[name] or "It is an argument of transformers, and nothing takes its place here."
    elif said is None and (name in schema() or len(ends) == 1):
        said = name if name in schema() else ends[0]
    elif said is None:
        return f" Did you mean {' or '.join(ends)}?" if ends else None
    before, _, last = said.rpartition(" ")
    if said.endswith("."):
        return f" {said}"
    if "=" in last and (value or "true").lower() in FALSE:
        return f" Leave it out; the opposite is {said}."
    typed = said if "=" in last else f"{before} {with_value(last, value)}".strip()
    return f" Type {suggestions.shown(typed)}."


def _plain(key: str) -> str:
    return key.lstrip("-").replace("-", "_").lower()
