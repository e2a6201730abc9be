"""The overrides of a command line, one at a time, before Hydra composes: what each may set, and with which values."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, OverrideType

from legroom import paths, suggestions
from legroom.compat import hydra_private
from legroom.config import GROUPS
from legroom.options import keys, menus, model_names
from legroom.records.validate import has_type

FOLDER_KEYS = ("hydra.run.dir", "hydra.sweep.dir")
ONE_WORD = re.compile(r"[\w.-]+")
NAMES = (str, list, ChoiceSweep, Glob)  # the value of an override that names one option or several
# Devices whose programs are compiled as a whole or run on other allocators: nothing of an estimate would hold.
OTHER_DEVICES = re.compile(r"gaudi|hpu|tpu|trainium|trn\d|inferentia|inf2|apple|mps|xpu|ascend|npu", re.IGNORECASE)
NO_CUDA_NO_ROCM = (
    " An estimate follows the allocators and kernels of CUDA and ROCm; of Gaudi, TPUs, Trainium, Intel's, Apple's and "
    "Huawei's devices it can say nothing."
)
MOST_LISTED = 50  # options of a menu, in a message
VARIABLE = re.compile(r"\$\{\s*oc\.env\s*:")


def quoted(argv: Sequence[str]) -> list[str]:
    """The overrides as Hydra's grammar takes them.

    With quotes around a text, as of `data.path=Müller.txt`, brackets around the one word of a list, as of
    `tracker.tags=mine`, two pluses before the arguments of an optimizer's own class, whose names no option has, as of
    `optim.args.rank=8`, and two keys in place of `model.config=FOLDER`.
    """
    adds = _takes_any_argument(argv)
    argv = [typed for text in argv for typed in _from_scratch(text)]
    return [f"++{text}" if adds and text.startswith("optim.args") else _quoted(text) for text in argv]


def _from_scratch(text: str) -> list[str]:
    """`model.config=FOLDER` as the two keys that it stands for; any other override as it is.

    Further sizes of the menu's model are a mapping, `model.config={head_dim: 64}`, or one of its keys.
    """
    key, _, value = text.partition("=")
    if key != "model.config" or value.startswith(("{", "'{", '"{')) or value in ("", "null"):
        return [text]
    return [f"model.pretrained={value}", "model.weights=random"]


def _takes_any_argument(argv: Sequence[str]) -> bool:
    """Whether the chosen option of optim names a class, whose arguments its file need not have."""
    for text in argv:
        menu, _, option = text.partition("=")
        if menu != "optim":
            continue
        try:
            values = menus.option_values(menu, option, paths.menus())
        except (yaml.YAMLError, UnicodeDecodeError):  # Hydra reads the file next, and its error names the line
            continue
        if values.get("kind") == "factory":
            return True
    return False


def _quoted(text: str) -> str:
    key, equals, value = text.partition("=")
    if key.partition("/")[0] == "experiment" and equals:  # the one group without a default
        return f"+{text}"
    rule = keys.rule_of(key.lstrip("+"))
    if rule is not None and rule.kind is list and ONE_WORD.fullmatch(value) and value != "null":
        return f"{key}=[{value}]"
    if not equals or not _is_text(key):
        return text
    is_quoted_or_several = value.startswith(("'", '"')) or "," in value or "\n" in value
    if is_quoted_or_several or "${" in value or keys.parsed(text) is not None:
        return text
    escaped = value.replace("'", "\\'")
    in_quotes = f"{key}='{escaped}'"
    override = keys.parsed(in_quotes)
    if override is not None and override.value() == value:
        return in_quotes
    return text


def _is_text(key: str) -> bool:
    """Whether a key takes a text: a path, an id or a name."""
    rule = keys.rule_of(key.lstrip("+"))
    return key in FOLDER_KEYS or (rule is not None and rule.kind is str)


def problems(argv: Sequence[str], folders: list[Path], sweeping: bool) -> list[str]:
    """Why overrides cannot be used, a line each; empty where Hydra may compose.

    folders: where Hydra looks for menus; empty where that is not known, and options are not checked. sweeping: with -m.
    """
    lines = []
    for text in argv:
        lines += _problems(text, folders, sweeping)
    return lines


def _problems(text: str, folders: list[Path], sweeping: bool) -> list[str]:
    typed = suggestions.shown(text)
    override = keys.parsed(text)
    if override is None or not override.key_or_group:
        return [_unreadable(text, folders)]
    key = override.key_or_group
    if not sweeping and override.is_sweep_override():
        line = f"{typed} names several values: add -m to run them all, one after another."
        if _is_text(key) and "(" not in text:  # a path with commas
            line += f" {_quotes(text)}"
        return [line]
    if re.split(r"[./]", key)[0] == "hydra":
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
    if menu in GROUPS and menus.MENUS_OWN.intersection(inner):
        return [f"{typed} cannot be set by itself: an option of the menu sets it. Type {menu}=<option>."]
    deletes = override.type == OverrideType.DEL
    if key not in keys.schema() and keys.mapping_of(key) is None:
        value = None if deletes else text.partition("=")[2]
        return [keys.unknown(key, value)]
    if deletes and key in GROUPS:
        return [menus.needs_option(key, folders)]
    if deletes:
        return [f"{key} cannot be taken out of the configuration. Leave ~{key} out."]
    return _value_problems(override, key, typed, folders)


def _hydra_problems(override: Override, typed: str, sweeping: bool) -> list[str]:
    """Problems with Hydra's own keys that Hydra would not name, or would name in its own terms."""
    key = override.key_or_group
    if key == "hydra" or key.startswith("hydra/"):
        if isinstance(override.value(), str) or override.is_sweep_override():
            return []
        return [f"{typed}: {key} takes the name of an option. Leave it out."]
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
    empty = [suggestions.if_empty(key, value) for value in values]
    return [line for line in empty if line is not None]


def swept_in_a_file(params: Mapping[str, Any], folders: list[Path]) -> list[str]:
    """Why the keys or values that a file gives a sweeper (hydra.sweeper.params) cannot be used, a line each."""
    typed = [f"{key}={value}" for key, value in params.items() if not isinstance(value, Mapping)]
    return [f"hydra.sweeper.params: {line}" for line in problems(quoted(typed), folders, sweeping=True)]


# --- what cannot be read ---------------------------------------------------------------------------------


def _unreadable(text: str, folders: list[Path]) -> str:
    """The line for a text that is no override of Hydra's grammar."""
    typed = suggestions.shown(text)
    key, equals, value = text.partition("=")
    plain = key.lstrip("+~")
    if not equals:
        return _without_value(text, plain, folders)
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


def _without_value(text: str, plain: str, folders: list[Path]) -> str:
    """The line for a text without an equals sign. plain: the text without `+` or `~`."""
    typed = suggestions.shown(text)
    if plain in keys.schema():
        return f"{typed} has no value. Type {keys.with_value(plain, None)}."
    having = [f"{group}={text}" for group in GROUPS if text in menus.options(group, folders)]
    near = f" Did you mean {' or '.join(having)}?" if having else keys.suggestion(text, None)
    return f"'{typed}' is neither menu=option nor key=value.{near}"


def _quotes(text: str) -> str:
    """How to type a value as a text, with quotes for Hydra in quotes for the shell."""
    key, _, value = text.partition("=")
    inner = value.lstrip("'\"").replace("'", "\\'")
    in_quotes = suggestions.shown(f"\"{key}='{inner}'\"")
    return f"For a text with such characters type {in_quotes}."


# --- what is set -----------------------------------------------------------------------------------------


def _experiment_problems(override: Override, folders: list[Path]) -> list[str]:
    """An experiment is added with a plus: `+experiment=mine`, or one of a folder, `+experiment/guide=fp16`."""
    if not folders:
        return []
    key = override.key_or_group
    values = hydra_private.values_of(override) or []
    groups = experiments(folders)
    typed = suggestions.shown(override.input_line or key)
    is_known = any(group == key or group.startswith(f"{key}/") for group in groups)
    if is_known and override.type == OverrideType.ADD and isinstance(override.value(), NAMES):
        return _unknown_experiments(key, values, groups, typed)
    instead = []
    for group, files in groups.items():
        instead += [f"+{group}={name}" for name in files if name in values]
    if not instead:
        instead = [f"+{group}=<name>" for group in ([key] if key in groups else groups)]
    return [f"{typed}: an experiment is added with a plus, from its folder. Type {' or '.join(instead)}."]


def _unknown_experiments(key: str, values: list[Any], groups: Mapping[str, Collection[str]], typed: str) -> list[str]:
    """The first name that no experiment of a folder has. groups: from `experiments`."""
    known = []  # a name may have its folder in front: +experiment=guide/fp16
    for group, files in groups.items():
        known += [f"{group}/{name}".removeprefix(f"{key}/") for name in files]
    names = []
    for value in values:
        names += value if isinstance(value, list) else [value]
    unknown = [str(name) for name in names if str(name) not in known and "${" not in str(name)]
    if not unknown:
        return []
    name = unknown[0]
    elsewhere = [f"+{group}={name}" for group, files in groups.items() if name in files]
    near = f" Type {' or '.join(elsewhere)}." if elsewhere else suggestions.nearest(name, known)
    having = ", ".join(groups.get(key, ())) or "none of its own"
    return [f"{typed}: there is no experiment {key}/{name}.{near} {key} has {having}."]


def experiments(folders: list[Path]) -> dict[str, dict[str, Path]]:
    """`experiment`, and each folder in it as `experiment/guide`, with the files that lie there, by name."""
    groups: dict[str, dict[str, Path]] = {}
    for folder in folders:
        for path in sorted(folder.glob("experiment/**/*.yaml")):
            group = path.parent.relative_to(folder).as_posix()
            groups.setdefault(group, {}).setdefault(path.stem, path)
    return groups


def _value_problems(override: Override, key: str, typed: str, folders: list[Path]) -> list[str]:
    """The values of one override, several in a sweep."""
    if key in GROUPS and override.type != OverrideType.CHANGE:
        return [f"{typed}: {key} has an option already. Type {key}=<option>, without a plus."]
    values = hydra_private.values_of(override)
    if values is None:
        return []  # a range or a glob: its values are checked when it is composed
    lines = []
    for value in values:
        if key in GROUPS:
            line = _option_problem(key, value, folders)
        elif keys.is_section(key):
            line = _section_problem(key, value)
        else:
            line = _value_problem(key, value)
        if line is not None and line not in lines:
            lines.append(line)
    return lines


def _option_problem(group: str, value: Any, folders: list[Path]) -> str | None:
    """A menu takes the name of one of its options: `precision=16` and `checkpointing=true` are none."""
    options = list(menus.options(group, folders))
    if value in (None, ""):
        return menus.needs_option(group, folders)
    if not options or (isinstance(value, str) and value in options):
        return None
    typed = suggestions.shown(_as_typed(value))
    near = _nearest_option(group, value, options)
    if len(options) > MOST_LISTED:
        return f"{group}={typed}: there is no such option.{near} --help {group} lists all {len(options)}."
    return f"{group}={typed}: there is no such option.{near} {group} has {', '.join(options)}."


def _nearest_option(group: str, value: Any, options: list[str]) -> str:
    """' Type ...' or ' Did you mean ...?' for a value that is no option of a menu; '' where nothing is close."""
    typed = _as_typed(value)
    if group == "gpu" and OTHER_DEVICES.search(typed):
        return NO_CUDA_NO_ROCM
    if group == "accumulation" and isinstance(value, int) and not isinstance(value, bool):
        return f" Type accumulation.steps={value}."
    if group == "model" and "/" in typed:
        return f" Type model.pretrained={suggestions.shown(typed)}."
    if group == "model" and isinstance(value, str) and model_names.near(value):
        return f"{model_names.offered(value)} {_of_hub(typed)}"
    argument = keys.arguments().get(f"{group}={typed.lower()}")
    if argument:
        return f" Type {argument}."
    containing = [option for option in options if typed.isalnum() and typed in option]
    near = f" Did you mean {' or '.join(containing)}?" if containing else suggestions.nearest(typed, options)
    if group == "model" and ("-" in typed or not near):  # ids of the hub have dashes, options have none
        near += f" {_of_hub(typed)}"
    return near


def _of_hub(typed: str) -> str:
    return f"For a model of the hub, or in a folder, type model.pretrained={suggestions.shown(typed)}."


def _section_problem(section: str, value: Any) -> str | None:
    """A section is a mapping: `train=3` sets none of its keys."""
    if isinstance(value, dict):
        return None  # its keys and their values are checked when it is composed
    typed = suggestions.shown(_as_typed(value))
    keys_of_section = [name for name in keys.schema() if name.startswith(section + ".")]
    return f"{section}={typed}: {section} is a section. Set its keys: {', '.join(keys_of_section)}."


def _value_problem(key: str, value: Any) -> str | None:
    """The type of a key's value."""
    rule = keys.rule_of(key)
    if rule is None:
        return None
    if rule.kind is str and not rule.choices:
        empty = suggestions.if_empty(key, value)
        if empty is not None:
            return empty
    if keys.fits(rule, value):
        return None
    what = keys.WHAT[rule.kind]
    if rule.optional:
        what += " or null"
    typed = _as_typed(value)
    return f"{key}={suggestions.shown(typed)}: it must be {what}.{_instead_of(key, rule, value)}"


def _instead_of(key: str, rule: keys.Rule, value: Any) -> str:
    """' Type ...' for a value of another type than the key's; '' where nothing is close."""
    typed = _as_typed(value)
    argument = keys.arguments().get(f"{key}={typed}")
    if rule.choices or rule.kind in (list, dict):
        is_plain = isinstance(value, (str, int, float))
        return f" Type {keys.with_value(key, typed if is_plain else None)}."
    if argument:
        return f" Type {argument}."
    if rule.kind is int and isinstance(value, float) and value.is_integer():  # 1e3
        return f" Type {key}={int(value)}."
    return ""


def _as_typed(value: Any) -> str:
    """A value of a parsed override as it is typed."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_as_typed(item) for item in value)}]"
    if isinstance(value, dict):
        pairs = [f"{key}:{_as_typed(item)}" for key, item in value.items()]
        return "{" + ",".join(pairs) + "}"
    return str(value)
