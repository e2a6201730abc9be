"""The menus in conf/: the options of each, and the keys that an option uses."""

from pathlib import Path
from typing import Any

from legroom import yaml_table
from legroom.config import GROUPS
from legroom.config.fields import MISSING

# Keys that only an option's YAML sets.
MENUS_OWN = {"name", "kind", "facts", "family", "transformers_name", "compiles_step"}


def options(group: str, folders: list[Path]) -> dict[str, Path]:
    """Option -> YAML file of a menu. folders: where Hydra looks; the first one that has an option is used."""
    files: dict[str, Path] = {}
    for folder in reversed(folders):
        for path in sorted(folder.glob(f"{group}/*.yaml")):
            files[path.stem] = path
    return files


def needs_option(group: str, folders: list[Path]) -> str:
    """The line for a menu without a choice."""
    return f"{group} needs one of its options: {', '.join(options(group, folders))}."


def option_values(group: str, option: str, folders: list[Path]) -> dict[str, Any]:
    """The values in an option's YAML, and those of the options in its `defaults`.

    Empty for an unknown option, and for a file that holds no keys, which Hydra refuses when it composes.
    Raises yaml.YAMLError, or UnicodeDecodeError for a file that is no text.
    """
    path = options(group, folders).get(option)
    if path is None:
        return {}
    own_values = yaml_table.read(path)
    if not isinstance(own_values, dict):
        return {}
    bases = own_values.pop("defaults", [])
    if "_self_" not in bases:
        bases = [*bases, "_self_"]
    composed: dict[str, Any] = {}
    for base in bases:
        if base == "_self_":
            composed |= own_values
        elif isinstance(base, str):  # a mapping is the choice of another group
            composed |= option_values(group, base, folders)
    return composed


def unused_keys(values: dict, choices: dict[str, str], folders: list[Path]) -> list[str]:
    """A problem for each key with a value that the chosen option does not use."""
    problems = []
    for group in GROUPS:
        used = option_values(group, choices[group], folders)
        for key, value in values[group].items():
            if value == MISSING or key == "facts" or key in used:
                continue
            having = [name for name in options(group, folders) if key in option_values(group, name, folders)]
            if having:
                advice = f"it belongs to {', '.join(f'{group}={name}' for name in having)}."
            else:
                advice = "leave it out, for it follows from the others."
            problems.append(f"{group}.{key} is not used by {group}={choices[group]}; {advice}")
    return problems
