"""The configuration of a record beside the defaults, and the command that repeats the job."""

import functools
import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from legroom import invocation, paths, yaml_table
from legroom.config import GROUPS, from_dict
from legroom.options import gpu as gpu_options
from legroom.options import menus, own_weights
from legroom.records.record import WEIGHTS, Record

TYPED, DERIVED, OPTION, DEFAULT = "typed", "derived", "option", "default"
ORDER = (TYPED, DERIVED, OPTION, DEFAULT)  # as the page shows them


class NextCommand(NamedTuple):
    """What to type after an answer. title, note: of it on a page."""

    title: str
    note: str
    command: str


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
    return _command_line(record, [*_without(record.overrides, more), *more])


def to_train(record: Record, changes: Sequence[str] = ()) -> str:
    """What to type to train what an estimate was of. changes: overrides in place of those of their keys.

    Where the estimate had sizes and random ids, the command names pretrained weights and a person's own rows.
    """
    typed = [override for override in record.overrides if not override.startswith(("recipe", "estimate."))]
    changed = gpu_options.of_training([*_without(typed, changes), *changes])
    return _command_line(record, own_weights.filled_in(changed, from_dict(record.config)))


def next_command(record: Record) -> NextCommand | None:
    """What to type after an estimate; None where it does not fit and nothing is known that does, and after a run.

    What fits, or is tight, is trained. Where it does not fit, what was estimated to fit is trained, and what has room
    by a multiplication is estimated first.
    """
    estimate = record.estimate
    if estimate is None or record.program is not None:
        return None
    if record.error is None:
        return NextCommand("Train it", "The training that was estimated.", to_train(record))
    if not estimate.proposal:
        return None
    words = " ".join(estimate.proposal)
    if estimate.decided_by == WEIGHTS:
        title, note = f"Try it with {words}", "There is room by a multiplication, which this estimate checks."
        return NextCommand(title, note, command(record, *estimate.proposal))
    return NextCommand(f"Train it with {words}", "Estimated to fit.", to_train(record, estimate.proposal))


def _without(overrides: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Overrides, but for those of the keys of some others."""
    keys = {change.partition("=")[0] for change in changes}
    return [override for override in overrides if override.partition("=")[0] not in keys]


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
