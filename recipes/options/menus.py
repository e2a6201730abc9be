"""The menus on disk: the options of each, and the keys that an option uses."""

from __future__ import annotations

from pathlib import Path

import yaml

from recipes.config import GROUPS, MISSING

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
                + (f"it belongs to {', '.join(f'{group}={o}' for o in others)}." if others else "leave it out.")
            )
    return problems


MENUS_OWN = {"name", "family", "transformers_name"}  # what makes an option this option


def set_by_menu(given: set[str]) -> list[str]:
    """A problem for each key typed that only a menu's option may set."""
    return [
        f"{key} cannot be set by itself: the option of the menu sets it. Type {key.split('.')[0]}=<option>."
        for key in sorted(given)
        if key.split(".")[0] in GROUPS and key.split(".")[-1] in MENUS_OWN
    ]
