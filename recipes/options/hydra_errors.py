"""Hydra's complaints about a command line in our words: what is wrong, and what to type instead."""

from __future__ import annotations

import re
from pathlib import Path

from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException

from recipes import config
from recipes.options import menus, suggestions


def raised_by_hydra(error: Exception) -> bool:
    """Whether an exception comes from Hydra's own checks of the command line, and not from a job."""
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    return frame.tb_frame.f_globals.get("__name__", "").startswith("hydra.")


def needs_option(group: str, folders: list[Path]) -> str:
    """The line for a menu without a choice."""
    return f"{group} needs one of its options: {', '.join(menus.options(group, folders))}."


def shape_problems(values: dict, choices: dict, folders: list[Path]) -> list[str]:
    """What `+key=`, `~menu` and `menu=null` can do to a configuration that the schema does not see."""
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
    """One line for what Hydra or OmegaConf refused: what is wrong, and what to type instead."""
    text = str(error)
    cause = str(error.__cause__ or "")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        missing = str(error.missing_cfg_file)
        group = next((g for g in config.GROUPS if missing.startswith(g + "/")), missing.rpartition("/")[0])
        if group == "hydra/launcher":
            return (
                f"{group}={missing.rpartition('/')[2]}: there is no such launcher here. pip install '.[sweeps]' "
                "brings joblib, submitit_local and submitit_slurm."
            )
        option, known = missing.removeprefix(group + "/"), sorted(p.stem for p in (conf / group).glob("*.yaml"))
        return f"{group}={option}: there is no such option; {group} has {', '.join(known)}." + suggestions.nearest(
            option, known
        )
    several = re.match(r"Ambiguous value for argument '([^']+)'", text)
    if several:
        return f"{several[1]} names several values: add -m to run them all, one after another."
    if isinstance(error, OverrideParseException):
        return f"'{error.override}' cannot be read as menu=option or key=value: {text.splitlines()[0]}."
    key = re.search(r"Could not override '([^'@]+)", text) or re.search(r"full_key: (\S+)", text + "\n" + cause)
    if isinstance(error, ConfigCompositionException) and key and "Could not override" in text:
        return unknown_key(key[1])
    nowhere = re.search(r"Interpolation key '([^']+)' not found", text)
    if nowhere and key:
        return f"{key[1]}: ${{{nowhere[1]}}} leads to no key."
    wrong = re.search(r"(Value '.*?' .*?)(?:\n|$)", text + "\n" + cause)
    if key and wrong:
        return f"{key[1]}: {wrong[1].strip()}."
    missing = re.search(r"Key '([^']+)' (?:not in|is not in)", text + "\n" + cause)
    if missing and key:
        return unknown_key(key[1])
    first = [line.strip() for line in (text + "\n" + cause).splitlines() if line.strip()]
    return " ".join(first[:3])


def unknown_key(key: str) -> str:
    """The line for a key that does not exist."""
    kinds = config.node_types()
    key = key.lstrip("+~")
    names = list(kinds)
    for name, kind in kinds.items():
        if hasattr(kind, "__dataclass_fields__"):
            names += [f"{name}.{k}" for k in config.node_types(kind) if k not in ("name", "facts")]
    head, _, tail = key.partition(".")
    if tail and head in kinds:  # a misspelt key of a real menu: its own keys are the candidates
        names = [n for n in names if n.startswith(head + ".")] or names
    what = "menu or key" if not tail else "key"
    suggestion = suggestions.nearest(key, names)
    if not suggestion:
        suggestion = (
            f" {head} has {', '.join(names)}." if tail and head in kinds else " python train.py --help lists all."
        )
    return f"{key}: there is no such {what}.{suggestion}"
