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

from legroom import config, suggestions, yaml_table
from legroom.compat import hydra_private
from legroom.options import menus
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


ANY_TEXT = Rule(str, False, ())


@functools.cache
def schema() -> dict[str, Rule]:
    """The rule of every menu, section, plain key and `section.key` that a person may set."""
    rules = _rules(config.Config, "")
    for name, rule in list(rules.items()):
        if dataclasses.is_dataclass(rule.kind):
            rules |= _rules(rule.kind, f"{name}.")
    return {name: rule for name, rule in rules.items() if name.rpartition(".")[2] not in menus.MENUS_OWN}


def _rules(cls: Any, prefix: str) -> dict[str, Rule]:
    """The rules of the fields of a class of the schema, by the field's name behind `prefix`."""
    kinds = config.node_types(cls)
    hints = typing.get_type_hints(cls)
    rules = {}
    for field in dataclasses.fields(cls):
        kind = kinds[field.name]
        rules[f"{prefix}{field.name}"] = Rule(
            kind=typing.get_origin(kind) or kind,  # list of list[str]
            optional=type(None) in typing.get_args(hints[field.name]),
            choices=tuple(str(choice) for choice in field.metadata.get("choices", ()) if choice is not None),
        )
    return rules


def is_section(key: str) -> bool:
    """Whether a key is a menu or a section, whose keys are set one by one."""
    return key in schema() and dataclasses.is_dataclass(schema()[key].kind)


def rule_of(key: str) -> Rule | None:
    """The rule of a key with a value; None for a menu, a section or an unknown key."""
    if is_section(key):
        return None
    return schema().get(key)


def mapping_of(key: str) -> str | None:
    """`optim.args` of `optim.args` and `optim.args.rank`: the key whose value is a mapping, or None."""
    parent = ".".join(key.split(".")[:2])
    rule = rule_of(parent)
    if rule is not None and rule.kind is dict:
        return parent
    return None


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
    if kind is Any:
        return True
    if isinstance(value, str) and "${" in value:  # what it stands for is known when it is composed
        return True
    if value is None:
        return rule.optional
    if kind is dict:
        return isinstance(value, dict)
    if kind is list:
        return isinstance(value, list) and not any(item is None or isinstance(item, (list, dict)) for item in value)
    if kind is str and isinstance(value, (bool, list, dict)):
        return False
    try:
        NODES[kind](value=value)
    except (OmegaConfBaseException, ValueError, OverflowError):
        return False
    return True


def with_value(key: str, value: str | None) -> str:
    """`key=value`, or what the key takes in place of a value that it does not: `device=<auto|cpu|cuda>`."""
    value = value or ""
    if key == "model" and "/" in value:
        return f"model.pretrained={value}"
    if key in config.GROUPS:
        rule = Rule(str, False, tuple(menus.options(key, [CONF])))
    elif is_section(key):
        return f"{key}.<key>=<value>"
    else:
        rule = schema().get(key, ANY_TEXT)  # hydra.run.dir is not in the schema
    if rule.kind is dict:
        return f"{key}.<name>=<value>"
    if rule.kind is list and not value.startswith("["):
        if not value or parsed(f"{key}=[{value}]") is None:
            value = "<value>"
        return f"{key}=[{value}]"
    if rule.kind is bool and not value:
        value = "true"
    if value and _takes(rule, value):
        return f"{key}={value}"
    return f"{key}=<{_placeholder(rule, value)}>"


def _placeholder(rule: Rule, value: str) -> str:
    """What stands between < and > for a value that a person is to type. value: typed, and refused by the key."""
    if len(rule.choices) > MOST_OPTIONS:
        return "option"
    if rule.choices:
        return "|".join(rule.choices)
    if value:
        return WHAT.get(rule.kind, "value")
    return "value"


def _takes(rule: Rule, value: str) -> bool:
    """Whether a typed value, or each one of a sweep, is of a key's type and choices."""
    override = parsed(f"key={value}")
    if override is None:
        return rule.kind is str and not rule.choices  # a path with letters that need quotes
    for each in hydra_private.values_of(override) or ():
        if not fits(rule, each):
            return False
        if rule.choices and str(each) not in rule.choices:
            return False
    return True


# --- a key that does not exist ---------------------------------------------------------------------------


@functools.cache
def arguments() -> dict[str, str | None]:
    """Argument of transformers, or argument=value -> the answer to it, as the head of ARGUMENTS_FILE describes."""
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
    name = _plain(key)
    for candidate in (name, _plain(f"{head}_{tail}"), _plain(tail)):  # optim.weight_decay, eval.batch_size, train.lr
        answer = _answer(candidate, value)
        if answer is not None:
            return answer
    argument_names = [argument for argument in arguments() if "=" not in argument]
    closest = suggestions.closest(name, [*schema(), *argument_names])
    if closest in arguments():
        return f" Did you mean {closest}?{_answer(closest, value)}"
    if tail and is_section(head):  # a misspelt key of an existing menu or section: only its keys are suggested
        keys_of_section = [known for known in schema() if known.startswith(head + ".")]
        nearest = suggestions.nearest(key, keys_of_section)
        if nearest:
            return nearest
        if not keys_of_section:
            return f" {head} has no keys: type {head}=<option>."
        return f" {head} has {', '.join(keys_of_section)}."
    return suggestions.nearest(name, schema()) or " --help all lists them."


def _answer(name: str, value: str | None) -> str | None:
    """What to type for an argument of transformers, a key, or a key without its section; None for any other name."""
    typed_value = (value or "true").lower()
    same_end = [key for key in schema() if key.rpartition(".")[2] == name]
    answer = arguments().get(f"{name}={typed_value}")
    if answer is not None:
        pass
    elif name in arguments():
        answer = arguments()[name]
        if not answer:
            answer = "It is an argument of transformers, and nothing takes its place here."
    elif name in schema():
        answer = name
    elif len(same_end) == 1:
        answer = same_end[0]
    elif same_end:
        return f" Did you mean {' or '.join(same_end)}?"
    else:
        return None

    if answer.endswith("."):  # a sentence
        return f" {answer}"
    before, _, last = answer.rpartition(" ")
    if "=" not in last:
        answer = f"{before} {with_value(last, value)}".strip()
    elif typed_value in FALSE:
        return f" Leave it out; the opposite is {answer}."
    return f" Type {suggestions.shown(answer)}."


def _plain(key: str) -> str:
    return key.lstrip("-").replace("-", "_").lower()
