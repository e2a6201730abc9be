"""Messages for Hydra's errors about a command line: what is wrong, and what to type instead."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException

from recipes import config
from recipes.options import menus, suggestions


def needs_option(group: str, folders: list[Path]) -> str:
    """The line for a menu without a choice."""
    return f"{group} needs one of its options: {', '.join(menus.options(group, folders))}."


def shape_problems(values: dict, choices: dict, folders: list[Path]) -> list[str]:
    """Problems with the keys of a configuration that the schema lets pass: after `+key=`, `~menu` and `menu=null`."""
    problems = []
    for group in config.GROUPS:
        if choices.get(group) is None and group in values:
            problems.append(needs_option(group, folders))
    for name, kind in config.node_types().items():
        if name not in values:
            problems.append(f"{name} cannot be taken out of the configuration. Leave ~{name} out.")
        if isinstance(values.get(name), dict):
            problems += [unknown_key(f"{name}.{key}") for key in values[name] if key not in config.node_types(kind)]
    return problems + [unknown_key(name) for name in values if name not in config.node_types()]


def explain(error: Exception, conf: Path) -> str:
    """The line for an error of Hydra or OmegaConf: what is wrong, and what to type instead.

    conf: the folder of the menus.
    """
    text = str(error)
    text_and_cause = f"{text}\n{error.__cause__ or ''}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        return _unknown_option(str(error.missing_cfg_file), conf)
    several = re.match(r"Ambiguous value for argument '([^']+)'", text)
    if several:
        return f"{several[1]} names several values: add -m to run them all, one after another."
    if isinstance(error, OverrideParseException):
        return f"'{error.override}' cannot be read as menu=option or key=value: {text.splitlines()[0]}."
    not_overridden = re.search(r"Could not override '([^'@]+)", text)
    key = not_overridden or re.search(r"full_key: (\S+)", text_and_cause)
    if isinstance(error, ConfigCompositionException):
        mapping = key and _mapping_key(key[1])
        if mapping and re.search(r"Key '.*' is not in struct|Missing mandatory value", text_and_cause):
            group = mapping.partition(".")[0]
            return (
                f"{mapping}: the chosen option of {group} does not take this argument. The arguments that an option "
                f"takes are in conf/{group}/<option>.yaml; leave the others out."
            )
        if not_overridden:
            return unknown_key(not_overridden[1])
    interpolation = re.search(r"Interpolation key '([^']+)' not found", text)
    if interpolation and key:
        return f"{key[1]}: ${{{interpolation[1]}}} refers to a key that does not exist."
    wrong_value = re.search(r"(Value '.*?' .*?)(?:\n|$)", text_and_cause)
    if key and wrong_value:
        return f"{key[1]}: {wrong_value[1].strip()}."
    if key and re.search(r"Key '([^']+)' (?:not in|is not in)", text_and_cause):
        return unknown_key(key[1])
    lines = [line.strip() for line in text_and_cause.splitlines() if line.strip()]
    return " ".join(lines[:3])


def _unknown_option(missing: str, conf: Path) -> str:
    """The line for `menu/option` where the menu has no such option."""
    group = next((g for g in config.GROUPS if missing.startswith(g + "/")), missing.rpartition("/")[0])
    if group == "hydra/launcher":
        return (
            f"{group}={missing.rpartition('/')[2]}: this launcher is not installed. pip install '.[sweeps]' installs "
            "joblib, submitit_local and submitit_slurm."
        )
    option, known = missing.removeprefix(group + "/"), sorted(path.stem for path in (conf / group).glob("*.yaml"))
    suggestion = suggestions.nearest(option, known)
    return f"{group}={option}: there is no such option; {group} has {', '.join(known)}.{suggestion}"


def _mapping_key(key: str) -> str | None:
    """`optim.args` of `optim.args` and `optim.args.rank`: the key of the schema whose value is a mapping, or None."""
    group, _, rest = key.partition(".")
    name, kind = rest.partition(".")[0], config.node_types().get(group)
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return None
    return f"{group}.{name}" if typing.get_origin(config.node_types(kind).get(name)) is dict else None


def unknown_key(key: str) -> str:
    """The line for a key that does not exist."""
    kinds = config.node_types()
    key = key.lstrip("+~")
    names = list(kinds)
    for name, kind in kinds.items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            names += [f"{name}.{leaf}" for leaf in config.node_types(kind) if leaf not in ("name", "facts")]
    head, _, tail = key.partition(".")
    if tail and head in kinds:  # a misspelt key of an existing menu or section: only its keys are suggested
        names = [name for name in names if name.startswith(head + ".")] or names
    what = "menu or key" if not tail else "key"
    suggestion = suggestions.nearest(key, names)
    if not suggestion:
        suggestion = (
            f" {head} has {', '.join(names)}." if tail and head in kinds else " python train.py --help lists all."
        )
    return f"{key}: there is no such {what}.{suggestion}"
