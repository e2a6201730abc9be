"""The configuration of a record beside the defaults, and the command that repeats the job."""

import functools
import json
import shlex
from typing import Any

from legroom import invocation, paths, yaml_table
from legroom.config import GROUPS, from_dict
from legroom.options import menus, own_weights
from legroom.records.record import Record

TYPED, DERIVED, DEFAULT, OPTION = "typed", "derived", "default", "option"


def compared(found: Record) -> list[dict[str, str]]:
    """Every key of the resolved configuration with its value, its default, and where the value is from.

    from: `typed` on the command line; `option`: a value that belongs to an option that was typed; `derived` from other
    keys, the model or the machine; `default`. What was typed stands first.
    """
    typed = {override.lstrip("+~").partition("=")[0] for override in found.overrides}
    lines = []
    for section, content in found.config.items():
        values = content if isinstance(content, dict) else {"": content}
        for name, value in values.items():
            key = section if name in ("", "name") else f"{section}.{name}"
            default = _default(section, name)
            option = str(values.get("name"))
            chosen = {"name": option} | _option(section, option)
            if key in typed:
                source = TYPED
            elif value == default:
                source = DEFAULT
            else:
                source = OPTION if section in typed and (name, value) in chosen.items() else DERIVED
            lines.append({"key": key, "value": _text(value), "default": _text(default), "from": source})
    order = [TYPED, DERIVED, OPTION, DEFAULT]
    return sorted(lines, key=lambda line: order.index(line["from"]))


def command(found: Record, *more: str) -> str:
    """What to type to run the job again. more: overrides in place of those of their keys."""
    if found.program is not None:
        program = found.program
        return f"{invocation.command('check', anywhere=True)} {shlex.join([*program.options, '--'])} {program.typed}"
    keys = {text.partition("=")[0] for text in more}
    typed = [text for text in found.overrides if text.partition("=")[0] not in keys]
    own = found.environment.get("menus") or []  # what named the folders of a person's own
    return " ".join([invocation.command(anywhere=True), *map(shlex.quote, [*own, *typed, *more])])


def to_train(found: Record) -> str:
    """What to type to train what an estimate was of: on one's own rows, from pretrained weights, where the estimate had
    sizes and random ids in their place."""
    cfg = from_dict(found.config)
    keys = ("recipe", "estimate.")
    typed = [text for text in found.overrides if not text.startswith(keys)]
    own = found.environment.get("menus") or []
    words = [*own, *own_weights.filled_in(typed, cfg)]
    return " ".join([invocation.command(anywhere=True), *map(shlex.quote, words)])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@functools.cache
def _root() -> dict[str, Any]:
    """The keys of conf/config.yaml, with the default option of each menu as {"name": option}."""
    values = yaml_table.read(paths.CONF / "config.yaml")
    chosen = [entry for entry in values.pop("defaults", []) if isinstance(entry, dict)]
    return values | {menu: {"name": option} for entry in chosen for menu, option in entry.items()}


@functools.cache
def _option(menu: str, option: str) -> dict[str, Any]:
    """Of a menu of ours: a record of somebody else may name any file."""
    return menus.option_values(menu, option, [paths.CONF]) if menu in GROUPS else {}


def _default(section: str, name: str) -> Any:
    """The value of a key when nothing is typed; None for a key that has no default."""
    values = _root().get(section)
    if not isinstance(values, dict):
        return values
    if name not in values and isinstance(values.get("name"), str):
        values = _option(section, values["name"])
    return values.get(name)
