"""The overrides of a command line, one at a time, before Hydra composes: what each may set, and with which values."""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from legroom.config import GROUPS
from legroom.options import keys, menus, suggestions
from legroom.third_party import hydra_private

# Texts for which true or a list is often typed, and what they take.
TAKES = {"resume": "resume=latest, or resume=<folder of a run or of a checkpoint>"}
SWITCHED_ON = {"checkpointing": "full"}  # menu -> what `true` stands for, where there are several options
FOLDER_KEYS = ("hydra.run.dir", "hydra.sweep.dir")
ONE_WORD = re.compile(r"[\w.-]+")
VARIABLE = re.compile(r"\$\{\s*oc\.env\s*:")


def quoted(argv: Sequence[str]) -> list[str]:
    """The overrides, with quotes around a text that Hydra's grammar does not take without, as `data.path=Müller.txt`,
    and brackets around the one word of a list, as `tracker.tags=mine`."""
    return [_quoted(text) for text in argv]


def _quoted(text: str) -> str:
    key, equals, value = text.partition("=")
    kind = keys.type_of(key.lstrip("+"))
    is_text = key in FOLDER_KEYS or (kind is not None and kind[0] is str)
    if kind is not None and typing.get_origin(kind[0]) is list and ONE_WORD.fullmatch(value) and value != "null":
        return f"{key}=[{value}]"
    if not equals or not is_text or value[:1] in ("'", '"') or set(value) & set(",\n") or "${" in value:
        return text
    if _parsed(text) is not None:
        return text
    in_quotes = "{}='{}'".format(key, value.replace("'", "\\'"))
    override = _parsed(in_quotes)
    return in_quotes if override is not None and override.value() == value else text


def problems(argv: Sequence[str], folders: list[Path], sweeping: bool) -> list[str]:
    """Why overrides cannot be used, a line each; empty where Hydra may compose.

    folders: where Hydra looks for menus; empty where that is not known, and options are not checked. sweeping: with -m.
    """
    return [line for text in argv for line in _problems(text, folders, sweeping)]


def _parsed(text: str) -> Override | None:
    try:
        return hydra_private.parse_override(text)
    except (HydraException, ValueError, RecursionError):  # ValueError: of a function, as in int(x)
        return None


def _problems(text: str, folders: list[Path], sweeping: bool) -> list[str]:
    typed, override = suggestions.shown(text), _parsed(text)
    if override is None or not override.key_or_group:
        return [_unreadable(text, folders)]
    key = override.key_or_group
    if not sweeping and override.is_sweep_override():
        return [f"{typed} names several values: add -m to run them all, one after another.{_as_one(text, key)}"]
    if key == "hydra" or key.startswith("hydra/"):
        taken = isinstance(override.value(), str) or override.is_sweep_override()
        return [] if taken else [f"{typed}: {key} takes the name of an option."]
    if sweeping and key == "hydra.sweep.dir" and "${" in text:
        return [
            f"{typed}: a sweep's folder is named before anything is resolved, and a tracker shows its name. "
            "Type the name, or let the shell put it there."
        ]
    if key.startswith("hydra."):
        values = hydra_private.values_of(override) or []
        return [line for value in values if (line := suggestions.if_empty(key, value)) is not None]
    if VARIABLE.search(text):
        return [
            f"{typed}: the value of a variable would stand in the record, on the screen and in the tracker. Leave it "
            "out, or let the shell put it there if it is no secret."
        ]
    if override.package is not None:
        return [f"{typed}: a menu has one place. Type {key}=<option>, without @."]
    if key.partition("/")[0] == "experiment":
        return _experiment_problems(override, folders)
    own = set(key.split(".")[1:]) & menus.MENUS_OWN  # `menus.set_by_menu` refuses them, with another reason
    if key not in keys.names() and keys.mapping_of(key) is None and not own:
        return [keys.unknown(key, None if override.type == OverrideType.DEL else text.partition("=")[2])]
    if override.type == OverrideType.DEL:
        return [_deletion(key, folders)]
    return _value_problems(override, key, typed, folders)


# --- what cannot be read ---------------------------------------------------------------------------------


def _unreadable(text: str, folders: list[Path]) -> str:
    """The line for a text that is no override of Hydra's grammar."""
    typed, (key, equals, value) = suggestions.shown(text), text.partition("=")
    if not equals:
        if text.lstrip("+~") in keys.names():
            what = "<option>" if text.lstrip("+~") in GROUPS else "<value>"
            return f"{typed} has no value. Type {typed.lstrip('+~')}={what}."
        menus_of = [f"{group}={text}" for group in GROUPS if text in menus.options(group, folders)]
        near = f" Did you mean {' or '.join(menus_of)}?" if menus_of else keys.suggestion(text, None)
        return f"'{typed}' is neither menu=option nor key=value.{near}"
    if not key.strip("+~ ") or key != key.strip():
        return f"'{typed}' cannot be read: type key=value, without spaces around the equals sign."
    name = re.sub(r"[^\w./@+~:-]", "", key)
    if name != key or not all(re.split(r"[./]", key.lstrip("+~"))):
        near = keys.suggestion(name.lstrip("+~").strip("./"), value)
        return f"'{typed}' cannot be read: {suggestions.shown(key)} is no key.{near}"
    for quote in "'\"":
        if value.startswith(quote) and (len(value) == 1 or not value.endswith(quote)):
            return f"{typed}: the quote {quote} is opened and not closed."
    if value.startswith(",") or value.endswith(","):
        return f"{typed}: a value is missing before or behind a comma."
    kind = keys.type_of(key.lstrip("+"))
    if kind is None and key not in GROUPS and not key.startswith("hydra") and keys.mapping_of(key) is None:
        return keys.unknown(key, value)
    if kind is not None and kind[0] in keys.KINDS and kind[0] is not str:
        return f"{typed}: it must be {keys.KINDS[kind[0]][1]}{' or null' if kind[1] else ''}."
    if key in GROUPS:
        return f"{typed} cannot be read. Type {key}=<option>: {', '.join(menus.options(key, folders))}."
    for opened, closed in ("[]", "{}", "()"):
        if value.count(opened) != value.count(closed):
            return f"{typed}: a bracket {opened} or {closed} has no partner. {_quotes(text)}"
    return f"{typed} cannot be read as {key}=<value>. {_quotes(text)}"


def _quotes(text: str) -> str:
    """How to type a value as a text, with quotes for Hydra in quotes for the shell."""
    key, _, value = text.partition("=")
    inner = value.replace("'", "\\'")
    return "For a text with such characters type " + suggestions.shown(f"\"{key}='{inner}'\"") + "."


def _as_one(text: str, key: str) -> str:
    """How to type a path with commas."""
    kind = keys.type_of(key)
    is_text = key in FOLDER_KEYS or (kind is not None and kind[0] is str)
    return f" {_quotes(text)}" if is_text and "(" not in text else ""


# --- what is set -----------------------------------------------------------------------------------------


def _deletion(key: str, folders: list[Path]) -> str:
    if key in GROUPS:
        return menus.needs_option(key, folders)
    return f"{key} cannot be taken out of the configuration. Leave ~{key} out."


def _experiment_problems(override: Override, folders: list[Path]) -> list[str]:
    """An experiment is added with a plus, from its folder."""
    key, values = override.key_or_group, hydra_private.values_of(override)
    if not folders:
        return []
    files = [path for folder in folders for path in sorted(folder.glob("experiment/*/*.yaml"))]
    is_name = override.is_sweep_override() if values is None else all(isinstance(one, (str, list)) for one in values)
    is_name &= not (override.is_range_sweep() or override.is_interval_sweep())
    menus_of_experiments = list(dict.fromkeys(f"experiment/{path.parent.name}" for path in files))
    if key in menus_of_experiments and override.type == OverrideType.ADD and is_name:
        return []
    named = [f"+experiment/{path.parent.name}={path.stem}" for path in files if path.stem in (values or [])]
    instead = named or [f"+{name}=<name>" for name in ([key] if key in menus_of_experiments else menus_of_experiments)]
    return [
        f"{suggestions.shown(override.input_line or key)}: an experiment is added with a plus, from its folder. "
        f"Type {' or '.join(instead)}."
    ]


def _value_problems(override: Override, key: str, typed: str, folders: list[Path]) -> list[str]:
    """The values of one override, several in a sweep."""
    if key in GROUPS and override.type != OverrideType.CHANGE:
        return [f"{typed}: {key} has an option already. Type {key}=<option>, without a plus."]
    values = hydra_private.values_of(override)
    if values is None:
        return []  # a range or a glob: its values are checked when it is composed
    check = _option_problem if key in GROUPS else _section_problem if keys.is_section(key) else _value_problem
    found = [check(key, value, folders) for value in values]
    return list(dict.fromkeys(line for line in found if line is not None))


def _option_problem(group: str, value: Any, folders: list[Path]) -> str | None:
    """A menu takes the name of one of its options: `precision=16` and `checkpointing=true` are none."""
    options = list(menus.options(group, folders))
    if value in (None, ""):
        return menus.needs_option(group, folders)
    if not options or (isinstance(value, str) and value in options):
        return None
    typed = _as_typed(value)
    if isinstance(value, bool) and "none" in options:
        others = [option for option in options if option != "none"]
        on = others[0] if len(others) == 1 else SWITCHED_ON.get(group, "none")
        near = f" Did you mean {group}={on if value else 'none'}?"
    elif isinstance(value, int) and f"x{value}" in options:
        near = f" Did you mean {group}=x{value}?"
    elif group == "accumulation" and isinstance(value, int):
        near = f" Type accumulation.steps={value}."
    elif group == "model" and "/" in typed:
        near = f" Type model.pretrained={suggestions.shown(typed)}."
    elif f"{group}={typed.lower()}" in keys.arguments():
        near = f" Type {keys.arguments()[f'{group}={typed.lower()}']}."
    else:
        within = [option for option in options if typed.isalnum() and typed in option]
        near = f" Did you mean {' or '.join(within)}?" if within else suggestions.nearest(typed, options)
        if group == "model" and ("-" in typed or not near):  # ids of the hub have dashes, options have none
            near += f" For a model of the hub, or in a folder, type model.pretrained={suggestions.shown(typed)}."
    return f"{group}={suggestions.shown(typed)}: there is no such option; {group} has {', '.join(options)}.{near}"


def _section_problem(section: str, value: Any, folders: list[Path]) -> str | None:
    """A section is a mapping: `train=3` sets none of its keys."""
    if isinstance(value, dict):
        lines = [
            _value_problem(key, each, folders) if (key := f"{section}.{name}") in keys.names() else keys.unknown(key)
            for name, each in value.items()
        ]
        return next((line for line in lines if line is not None), None)
    own = [name for name in keys.names() if name.startswith(section + ".")]
    return f"{section}={suggestions.shown(_as_typed(value))}: {section} is a section. Set its keys: {', '.join(own)}."


def _value_problem(key: str, value: Any, folders: list[Path]) -> str | None:
    """The type of a key's value."""
    found = keys.type_of(key)
    if found is None or (isinstance(value, str) and "${" in value):
        return None
    (kind, optional), typed = found, f"{key}={suggestions.shown(_as_typed(value))}"
    if kind is Any:  # what may be typed, its option knows
        return None
    if typing.get_origin(kind) is list:
        plain = isinstance(value, list) and not any(one is None or isinstance(one, (list, dict)) for one in value)
        return None if plain or value is None and optional else _list_problem(key, value, typed)
    if kind not in keys.KINDS:
        return None if isinstance(value, dict) or value is None and optional else _mapping_problem(key, typed)
    node, what = keys.KINDS[kind]
    if kind is str and not keys.choices_of(key) and (empty := suggestions.if_empty(key, value)) is not None:
        return empty
    if kind is str and (isinstance(value, (bool, list, dict)) or value is None and not optional):
        return f"{typed}: {key} takes one text. Type {TAKES.get(key, f'{key}=<text>')}."
    if value is None and optional:
        return None
    try:
        if value is None:
            raise ValueError
        node(value=value)
    except (OmegaConfBaseException, ValueError, OverflowError):
        whole = int(value) if isinstance(value, float) and kind is int and value.is_integer() else None
        instead = "" if whole is None else f" Type {key}={whole}."
        return f"{typed}: it must be {what}{' or null' if optional else ''}.{instead}"
    return None


def _list_problem(key: str, value: Any, typed: str) -> str:
    one = suggestions.shown(_as_typed(value)) if isinstance(value, (str, int, float)) else "<value>"
    return f"{typed}: it takes a list. Type {key}=[{one}]."


def _mapping_problem(key: str, typed: str) -> str:
    return f"{typed}: it takes a mapping from names to values. Type {key}.<name>=<value>."


def _as_typed(value: Any) -> str:
    """A value of a parsed override as it is typed."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(_as_typed, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_as_typed(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
