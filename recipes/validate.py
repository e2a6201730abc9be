"""validate(cfg): every problem of a configuration at once, in words, before anything slow starts."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
from pathlib import Path

import yaml

from recipes.machine import host
from recipes.config import GROUPS, MISSING, Config


def nearest(word: str, candidates) -> str:
    """' Did you mean ...?' with the names closest to a misspelt one, or nothing."""
    close = difflib.get_close_matches(str(word), list(map(str, candidates)), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else ""


# --- the menus on disk ------------------------------------------------------------------------


def options(group: str, folders: list[Path]) -> dict[str, Path]:
    """Option name -> YAML of a menu, over all folders in which Hydra looks."""
    return {path.stem: path for folder in reversed(folders) for path in sorted(folder.glob(f"{group}/*.yaml"))}


def option_keys(group: str, option: str, folders: list[Path]) -> set[str]:
    """The keys that an option uses: those its YAML names, and those of the options it builds on."""
    path = options(group, folders).get(option)
    if path is None:
        return set()
    values = yaml.safe_load(path.read_text()) or {}
    keys = set(values) - {"defaults"}
    for base in values.get("defaults", []):
        if isinstance(base, str) and base != "_self_":
            keys |= option_keys(group, base, folders)
    return keys


def unused_keys(values: dict, choices: dict[str, str], folders: list[Path]) -> list[str]:
    """A problem for each key that has a value but that the chosen option does not use."""
    problems = []
    for group in GROUPS:
        used = option_keys(group, choices[group], folders)
        if not used:
            continue
        for key, value in values[group].items():
            if value == MISSING or key in used:
                continue
            others = [o for o in options(group, folders) if key in option_keys(group, o, folders)]
            problems.append(
                f"{group}.{key} has no meaning for {group}={choices[group]}; "
                + (f"it belongs to {', '.join(f'{group}={o}' for o in others)}." if others else "leave it out."))
    return problems


MENUS_OWN = {"name", "family", "transformers_name"}  # what makes an option this option


def set_by_menu(given: set[str]) -> list[str]:
    """A problem for each key typed that only a menu's option may set."""
    return [f"{key} cannot be set by itself: the option of the menu sets it. Type {key.split('.')[0]}=<option>."
            for key in sorted(given) if key.split(".")[0] in GROUPS and key.split(".")[-1] in MENUS_OWN]


# --- one key at a time ------------------------------------------------------------------------


def value_problems(node, prefix: str = "") -> list[str]:
    """What the schema says of single values: choices and smallest numbers."""
    problems = []
    for field in dataclasses.fields(node):
        key, value, rule = prefix + field.name, getattr(node, field.name), field.metadata
        if dataclasses.is_dataclass(value):
            problems += value_problems(value, key + ".")
        elif value is None:
            continue
        elif "choices" in rule and value not in rule["choices"]:
            words = ["null" if c is None else str(c) for c in rule["choices"]]
            problems.append(f"{key}={value} is not one of {', '.join(words)}.{nearest(value, words)}")
        elif "minimum" in rule and not value >= rule["minimum"]:  # NaN, too, is refused
            problems.append(f"{key}={value} is too small: the least is {rule['minimum']}.")
        elif "below" in rule and not value < rule["below"]:
            problems.append(f"{key}={value} is too large: it must be below {rule['below']}.")
        elif isinstance(value, float) and value == float("inf"):
            problems.append(f"{key}={value} must be a finite number.")
    return problems


# --- the whole --------------------------------------------------------------------------------


def modules() -> list:
    """The module of each menu and section that has one: `recipes/<name>.py`."""
    names = [{"tracker": "trackers"}.get(f.name, f.name) for f in dataclasses.fields(Config)]
    return [importlib.import_module(f"recipes.{name}") for name in names
            if importlib.util.find_spec(f"recipes.{name}") is not None]


def resolve(cfg: Config) -> list[str]:
    """Fill in what is derived from other keys (in place); returns what cannot be derived."""
    return [problem for module in modules() if hasattr(module, "resolve") for problem in module.resolve(cfg)]


def validate(cfg: Config, given: set[str] = frozenset()) -> list[str]:
    """Every problem of a configuration on this machine, a line each; empty when it can run.

    given: the keys that the person typed, for options to which a key that has a value means nothing.
    """
    problems = value_problems(cfg)
    if problems:  # the checks below rely on sane values
        return problems
    problems = resolve(cfg)
    if cfg.device == "cuda" and cfg.recipe.name != "estimate" and not host.gpus():
        why = "torch is a CPU build" if not host.torch_has_cuda() else "no NVIDIA GPU is visible"
        problems.append(f"device=cuda, but {why}. Choose device=cpu.")
    if cfg.launch.memory_limit_gib == 0 or cfg.launch.timeout_seconds == 0:
        problems.append("launch.timeout_seconds and launch.memory_limit_gib must be above 0, or null for no limit.")
    for module in modules():
        if hasattr(module, "problems"):
            problems += module.problems(cfg)
        if hasattr(module, "given_problems"):
            problems += module.given_problems(cfg, given)
    return problems


def warnings(cfg: Config) -> list[str]:
    """What will run but deserves a word: a line each."""
    return [line for module in modules() if hasattr(module, "warnings") for line in module.warnings(cfg)]

