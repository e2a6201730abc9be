"""The overrides of a command line, one at a time, before Hydra composes: what each may set, and with which values."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, OverrideType

from legroom.compat import hydra_private
from legroom.config import GROUPS
from legroom.options import keys, menus, suggestions
from legroom.records.validate import has_type

FOLDER_KEYS = ("hydra.run.dir", "hydra.sweep.dir")
ONE_WORD = re.compile(r"[\w.-]+")
NAMES = (str, list, ChoiceSweep, Glob)  # the value of an override that names one option or several
VARIABLE = re.compile(r"\$\{\s*oc\.env\s*:")


def quoted(argv: Sequence[str]) -> list[str]:
    """The overrides, with quotes around a text that Hydra's grammar does not take without, as `data.path=Müller.txt`,
    and brackets around the one word of a list, as `tracker.tags=mine`."""
    return [_quoted(text) for text in argv]


def _quoted(text: str) -> str:
    key, equals, value = text.partition("=")
    rule = keys.rule_of(key.lstrip("+"))
    if rule and rule.kind is list and ONE_WORD.fullmatch(value) and value != "null":
        return f"{key}=[{value}]"
    if not equals or not _is_text(key) or value[:1] in ("'", '"') or set(value) & set(",\n") or "${" in value:
        return text
    if keys.parsed(text) is not None:
        return text
    in_quotes = "{}='{}'".format(key, value.replace("'", "\\'"))
    override = keys.parsed(in_quotes)
    return in_quotes if override is not None and override.value() == value else text


def _is_text(key: str) -> bool:
    """Whether a key takes a text: a path, an id or a name."""
    rule = keys.rule_of(key.lstrip("+"))
    return key in FOLDER_KEYS or (rule is not None and rule.kind is str)


def problems(argv: Sequence[str], folders: list[Path], sweeping: bool) -> list[str]:
    """Why overrides cannot be used, a line each; empty where Hydra may compose.

    folders: where Hydra looks for menus; empty where that is not known, and options are not checked. sweeping: with -m.
    """
    return [line for text in argv for line in _problems(text, folders, sweeping)]


def _problems(text: str, folders: list[Path], sweeping: bool) -> list[str]:
    typed, override = suggestions.shown(text), keys.parsed(text)
    if override is None or not override.key_or_group:
        return [_unreadable(text, folders)]
    key = override.key_or_group
    if not sweeping and override.is_sweep_override():
        one = f" {_quotes(text)}" if _is_text(key) and "(" not in text else ""  # a path with commas
        return [f"{typed} names several values: add -m to run them all, one after another.{one}"]
    if key.partition(".")[0].partition("/")[0] == "hydra":
        return _hydra_problems(override, typed, sweeping)
    if VARIABLE.search(text):
        return [
            f"{typed}: the value of a variable would stand in the record, on the screen and in the tracker. Leave it "
            "out, or let the shell put it there if it is no secret."
        ]
    if override.package is not None:
        return [f"{typed}: a menu has one place. Type {key}=<option>, without @."]
    if key.partition("/")[0] == "experiment":
        return _experiment_problems(override, folders)
    menu, *inner = key.split(".")
    if menu in GROUPS and set(inner) & menus.MENUS_OWN:
        return [f"{typed} cannot be set by itself: an option of the menu sets it. Type {menu}=<option>."]
    if key not in keys.schema() and keys.mapping_of(key) is None:
        return [keys.unknown(key, None if override.type == OverrideType.DEL else text.partition("=")[2])]
    if override.type == OverrideType.DEL:
        kept = f"{key} cannot be taken out of the configuration. Leave ~{key} out."
        return [menus.needs_option(key, folders) if key in GROUPS else kept]
    return _value_problems(override, key, typed, folders)


def _hydra_problems(override: Override, typed: str, sweeping: bool) -> list[str]:
    """What Hydra would not say, or say in its own terms, of its own keys."""
    key = override.key_or_group
    if key == "hydra" or key.startswith("hydra/"):
        taken = isinstance(override.value(), str) or override.is_sweep_override()
        return [] if taken else [f"{typed}: {key} takes the name of an option. Leave it out."]
    if sweeping and key == "hydra.sweep.dir" and "${" in (override.input_line or ""):
        return [
            f"{typed}: a sweep's folder is named before anything is resolved, and a tracker shows its name. "
            "Type the name, or let the shell put it there."
        ]
    if key.startswith("hydra.sweeper.params"):
        return [f"{typed}: what a sweep varies is typed by itself, as -m train.seed=1,2. Leave {key} out."]
    values = hydra_private.values_of(override) or []
    if key in ("hydra.launcher", "hydra.sweeper") and not all(isinstance(value, dict) for value in values):
        return [f"{typed}: it is a section. Type {key.replace('.', '/')}=<name>, or set its keys one by one."]
    if key == "hydra.verbose" and not all(has_type(value, bool | str | list[str]) for value in values):
        return [f"{typed}: it must be true, false, or a list of loggers' names. Type hydra.verbose=true."]
    return [line for value in values if (line := suggestions.if_empty(key, value)) is not None]


def swept_in_a_file(params: Mapping[str, Any], folders: list[Path]) -> list[str]:
    """Why the keys or values that a file gives a sweeper (hydra.sweeper.params) cannot be used, a line each."""
    typed = [f"{key}={value}" for key, value in params.items() if not isinstance(value, Mapping)]
    return [f"hydra.sweeper.params: {line}" for line in problems(quoted(typed), folders, True)]


# --- what cannot be read ---------------------------------------------------------------------------------


def _unreadable(text: str, folders: list[Path]) -> str:
    """The line for a text that is no override of Hydra's grammar."""
    typed, (key, equals, value) = suggestions.shown(text), text.partition("=")
    plain = key.lstrip("+~")
    if not equals and plain in keys.schema():
        return f"{typed} has no value. Type {keys.with_value(plain, None)}."
    if not equals:
        menus_of = [f"{group}={text}" for group in GROUPS if text in menus.options(group, folders)]
        near = f" Did you mean {' or '.join(menus_of)}?" if menus_of else keys.suggestion(text, None)
        return f"'{typed}' is neither menu=option nor key=value.{near}"
    if not plain.strip() or key != key.strip():
        return f"'{typed}' cannot be read: type key=value, without spaces around the equals sign."
    name = re.sub(r"[^\w./@+~:-]", "", plain)
    if name != plain or not all(re.split(r"[./]", plain)):
        near = keys.suggestion(name.strip("./"), value)
        return f"'{typed}' cannot be read: {suggestions.shown(key)} is no key.{near}"
    rule = keys.rule_of(plain)
    if plain in GROUPS or (rule is not None and rule.kind is not str):
        return f"{typed} cannot be read. Type {keys.with_value(plain, value)}."
    if rule is None and not key.startswith("hydra") and keys.mapping_of(plain) is None:
        return keys.unknown(key, value)
    return f"{typed} cannot be read: is a quote, a bracket or a comma too many, or one missing? {_quotes(text)}"


def _quotes(text: str) -> str:
    """How to type a value as a text, with quotes for Hydra in quotes for the shell."""
    key, _, value = text.partition("=")
    inner = value.lstrip("'\"").replace("'", "\\'")
    return "For a text with such characters type " + suggestions.shown(f"\"{key}='{inner}'\"") + "."


# --- what is set -----------------------------------------------------------------------------------------


def _experiment_problems(override: Override, folders: list[Path]) -> list[str]:
    """An experiment is added with a plus: `+experiment=mine`, or one of a folder, `+experiment/guide=fp16`."""
    key, values = override.key_or_group, hydra_private.values_of(override)
    if not folders:
        return []
    groups = experiments(folders)
    typed = suggestions.shown(override.input_line or key)
    # A name may have its folder in front: +experiment=guide/fp16.
    names = [f"{group}/{name}".removeprefix(f"{key}/") for group in groups for name in groups[group]]
    known = key in groups or any(group.startswith(f"{key}/") for group in groups)
    if known and override.type == OverrideType.ADD and isinstance(override.value(), NAMES):
        named = [str(each) for value in values or () for each in (value if isinstance(value, list) else [value])]
        unknown = [name for name in named if name not in names and "${" not in name]
        if not unknown:
            return []
        near = _experiment_named(unknown[0], groups) or suggestions.nearest(unknown[0], names)
        own = ", ".join(groups.get(key, ())) or "none of its own"
        return [f"{typed}: there is no experiment {key}/{unknown[0]}.{near} {key} has {own}."]
    named = [_typed_experiment(group, name) for group in groups for name in groups[group] if name in (values or [])]
    instead = named or [f"+{group}=<name>" for group in ([key] if key in groups else groups)]
    return [f"{typed}: an experiment is added with a plus, from its folder. Type {' or '.join(instead)}."]


def experiments(folders: list[Path]) -> dict[str, dict[str, Path]]:
    """`experiment`, and each folder in it as `experiment/guide`, with the files that lie there, by name."""
    groups: dict[str, dict[str, Path]] = {}
    for folder in folders:
        for path in sorted(folder.glob("experiment/**/*.yaml")):
            groups.setdefault(path.parent.relative_to(folder).as_posix(), {}).setdefault(path.stem, path)
    return groups


def _typed_experiment(group: str, name: str) -> str:
    return f"+{group}={name}"


def _experiment_named(name: str, groups: Mapping[str, Collection[str]]) -> str:
    """' Type +experiment/guide=fp16.' for a name that another folder of experiments has."""
    found = [_typed_experiment(group, name) for group in groups if name in groups[group]]
    return f" Type {' or '.join(found)}." if found else ""


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
    within = [option for option in options if typed.isalnum() and typed in option]
    if group == "accumulation" and isinstance(value, int) and not isinstance(value, bool):
        near = f" Type accumulation.steps={value}."
    elif group == "model" and "/" in typed:
        near = f" Type model.pretrained={suggestions.shown(typed)}."
    elif instead := keys.arguments().get(f"{group}={typed.lower()}"):
        near = f" Type {instead}."
    else:
        near = f" Did you mean {' or '.join(within)}?" if within else suggestions.nearest(typed, options)
        if group == "model" and ("-" in typed or not near):  # ids of the hub have dashes, options have none
            near += f" For a model of the hub, or in a folder, type model.pretrained={suggestions.shown(typed)}."
    return f"{group}={suggestions.shown(typed)}: there is no such option.{near} {group} has {', '.join(options)}."


def _section_problem(section: str, value: Any, folders: list[Path]) -> str | None:
    """A section is a mapping: `train=3` sets none of its keys."""
    if isinstance(value, dict):
        return None  # its keys and their values are checked when it is composed
    own = [name for name in keys.schema() if name.startswith(section + ".")]
    return f"{section}={suggestions.shown(_as_typed(value))}: {section} is a section. Set its keys: {', '.join(own)}."


def _value_problem(key: str, value: Any, folders: list[Path]) -> str | None:
    """The type of a key's value."""
    rule, typed = keys.rule_of(key), _as_typed(value)
    if rule is None:
        return None
    if rule.kind is str and not rule.choices and (empty := suggestions.if_empty(key, value)) is not None:
        return empty
    if keys.fits(rule, value):
        return None
    near = ""
    if rule.choices or rule.kind in (list, dict):
        near = f" Type {keys.with_value(key, typed if isinstance(value, (str, int, float)) else None)}."
    elif instead := keys.arguments().get(f"{key}={typed}"):
        near = f" Type {instead}."
    elif rule.kind is int and isinstance(value, float) and value.is_integer():  # 1e3
        near = f" Type {key}={int(value)}."
    what = keys.WHAT[rule.kind] + (" or null" if rule.optional else "")
    return f"{key}={suggestions.shown(typed)}: it must be {what}.{near}"


def _as_typed(value: Any) -> str:
    """A value of a parsed override as it is typed."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(_as_typed, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_as_typed(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
