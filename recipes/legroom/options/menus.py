"""The menus in conf/: the options of each, and the keys that an option uses."""

from pathlib import Path
from typing import Any

from legroom import yaml_table
from legroom.config import GROUPS
from legroom.config.fields import MISSING


def options(group: str, folders: list[Path]) -> dict[str, Path]:
    """Option -> YAML file of a menu. folders: where Hydra looks; the first one that has an option is used."""
    return {path.stem: path for folder in reversed(folders) for path in sorted(folder.glob(f"{group}/*.yaml"))}


def needs_option(group: str, folders: list[Path]) -> str:
    """The line for a menu without a choice."""
    return f"{group} needs one of its options: {', '.join(options(group, folders))}."


def option_values(group: str, option: str, folders: list[Path]) -> dict[str, Any]:
    """The values in an option's YAML, and those of the options in its `defaults`; empty for an unknown option."""
    path = options(group, folders).get(option)
    if path is None:
        return {}
    values = yaml_table.read(path) or {}
    bases, composed = values.pop("defaults", []), {}
    for base in bases if "_self_" in bases else [*bases, "_self_"]:
        if isinstance(base, str):  # and no other group's option
            composed |= values if base == "_self_" else option_values(group, base, folders)
    return composed


def unused_keys(values: dict, choices: dict[str, str], folders: list[Path]) -> list[str]:
    """A problem for each key with a value that the chosen option does not use."""
    problems = []
    for group in GROUPS:
        used = option_values(group, choices[group], folders)
        for key, value in values[group].items():
            if value == MISSING or key == "facts" or key in used:
                continue
            others = [o for o in options(group, folders) if key in option_values(group, o, folders)]
            problems.append(
                f"{group}.{key} is not used by {group}={choices[group]}; "
                + (
                    f"it belongs to {', '.join(f'{group}={o}' for o in others)}."
                    if others
                    else "leave it out, for it follows from the others."
                )
            )
    return problems


MENUS_OWN = {
    "name",
    "kind",
    "facts",
    "family",
    "transformers_name",
    "factory",
    "compiles_step",
}  # keys that only an option's YAML sets
