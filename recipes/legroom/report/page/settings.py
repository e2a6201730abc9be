"""The configuration of a record beside the defaults, and the command that repeats the job."""

import functools
import json
import shlex
from typing import Any

from legroom import invocation, paths, yaml_table
from legroom.config import GROUPS, from_dict
from legroom.options import menus, own_weights
from legroom.records.record import Record

TYPED, DERIVED, OPTION, DEFAULT = "typed", "derived", "option", "default"
ORDER = (TYPED, DERIVED, OPTION, DEFAULT)  # as the page shows them


def compared(record: Record) -> list[dict[str, str]]:
    """Every key of the resolved configuration with its value, its default, and where the value is from.

    from: `typed` on the command line; `option`: a value that belongs to an option that was typed; `derived` from other
    keys, the model or the machine; `default`. What was typed stands first.
    """
    typed = {override.lstrip("+~").partition("=")[0] for override in record.overrides}
    lines = []
    for section, content in record.config.items():
        values = content if isinstance(content, dict) else {"": content}
        option = str(values.get("name"))
        option_values = {"name": option} | _option(section, option)
        for name, value in values.items():
            key = section if name in ("", "name") else f"{section}.{name}"
            default = _default(section, name)
            if key in typed:
                source = TYPED
            elif value == default:
                source = DEFAULT
            elif section in typed and name in option_values and option_values[name] == value:
                source = OPTION
            else:
                source = DERIVED
            lines.append({"key": key, "value": _text(value), "default": _text(default), "from": source})
    return sorted(lines, key=lambda line: ORDER.index(line["from"]))


def command(record: Record, *more: str) -> str:
    """What to type to run the job again. more: overrides in place of those of their keys."""
    program = record.program
    if program is not None:
        options = shlex.join([*program.options, "--"])
        return f"{invocation.command('check', anywhere=True)} {options} {program.typed}"
    keys = {override.partition("=")[0] for override in more}
    typed = [override for override in record.overrides if override.partition("=")[0] not in keys]
    return _command_line(record, [*typed, *more])


def to_train(record: Record) -> str:
    """What to type to train what an estimate was of.

    Where the estimate had sizes and random ids, the command names pretrained weights and a person's own rows.
    """
    typed = [override for override in record.overrides if not override.startswith(("recipe", "estimate."))]
    return _command_line(record, own_weights.filled_in(typed, from_dict(record.config)))


def _command_line(record: Record, overrides: list[str]) -> str:
    folders = record.environment.get("menus") or []  # the options that name a person's own folders of menus
    return f"{invocation.command(anywhere=True)} {shlex.join([*folders, *overrides])}".rstrip()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@functools.cache
def _root() -> dict[str, Any]:
    """The keys of conf/config.yaml, with the default option of each menu as {"name": option}."""
    values = yaml_table.read(paths.CONF / "config.yaml")
    for entry in values.pop("defaults", []):
        if isinstance(entry, dict):
            for menu, option in entry.items():
                values[menu] = {"name": option}
    return values


@functools.cache
def _option(menu: str, option: str) -> dict[str, Any]:
    """The values of an option; none for a menu that is not ours: a record of somebody else may name any file."""
    if menu not in GROUPS:
        return {}
    return menus.option_values(menu, option, [paths.CONF])


def _default(section: str, name: str) -> Any:
    """The value of a key when nothing is typed; None for a key that has no default."""
    values = _root().get(section)
    if not isinstance(values, dict):
        return values
    if name not in values and isinstance(values.get("name"), str):
        values = _option(section, values["name"])
    return values.get(name)
