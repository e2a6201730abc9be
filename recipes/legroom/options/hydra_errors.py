"""Messages for Hydra's errors about a command line: what is wrong, and what to type instead."""

import re
from pathlib import Path

import yaml
from hydra.errors import ConfigCompositionException, MissingConfigException

from legroom import config, suggestions
from legroom.config.fields import MISSING
from legroom.options import keys, menus


def option_problems(values: dict, choices: dict, folders: list[Path]) -> list[str]:
    """A line for each menu that a file has left without an option, or with one of another name or of no kind."""
    problems = []
    for group in config.GROUPS:
        option = choices.get(group)
        kinds = config.kinds_of(group)
        if option is None:
            problems.append(menus.needs_option(group, folders))
        elif values[group].get("name") != option:
            problems.append(f"{group}={option}: the file {group}/{option}.yaml must have the line name: {option}.")
        elif kinds and values[group].get("kind") in (None, MISSING):
            problems.append(
                f"{group}={option}: {group}/{option}.yaml does not say what the option is. Give it the line kind: as "
                f"the option has it that it was copied from; {group} has the kinds {', '.join(kinds)}."
            )
    return problems


NOT_INSTALLED = {
    "hydra/launcher": "pip install '.[sweeps]' installs joblib, submitit_local and submitit_slurm.",
    "hydra/sweeper": "docs/sweeps.md says how to install optuna, in an environment of its own.",
}
INTERVALS = "an interval has no end of values: type 1,2,3 or range(1,4). hydra/sweeper=optuna takes intervals."
# A line of OmegaConf that names a place, and not what is wrong there
PLACE = re.compile(r"\s*(?:full_key|object_type|reference_type|Error merging override|In '[^']+': \w+ raised)\b")

# What to type instead, where Hydra or OmegaConf says only what is wrong: the first that is found in its line.
INSTEAD = {
    r"Interpolation key '.*' not found": "Type the value itself, or ${section.key} of a key that exists.",
    r"Recursive interpolation": "Type the value itself.",
    r"An item is already at": "Type it without a plus.",
    r"Additional config directory": "Name a folder that exists, or leave --config-dir out.",
    r"Primary config module|Cannot find primary config": "Leave the flag out: --config-dir adds a folder of menus.",
    r"Sweeping over Hydra's configuration": "Type one value.",
    r"is not Optional|Cannot convert|is not a valid|incompatible with": "Type another value, or leave it out.",
}


def explain(error: Exception, folders: list[Path]) -> str:
    """The line for an error of Hydra or OmegaConf: what is wrong, and what to type instead.

    folders: of menus, where Hydra looked.
    """
    if isinstance(error, (yaml.YAMLError, UnicodeDecodeError)):
        return _unreadable_file(error, folders)
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        about_file = _about_file(text)
        if about_file is not None:
            return about_file
        if error.options is None:
            return _first_cause(text)
        return _unknown_option(str(error.missing_cfg_file), folders)

    text_and_cause = text
    if error.__cause__ is not None:
        text_and_cause += f"\n{error.__cause__}"
    not_overridden = re.search(r"Could not override '([^'@]+)", text)
    named = re.search(r"full_key: (\S+)", text_and_cause) or not_overridden
    if named is None:
        if "does not support sweep type" in text:
            return INTERVALS
        return _about_file(text_and_cause) or _first_cause(text_and_cause)

    key = named[1]
    mapping = keys.mapping_of(key)
    if mapping is not None and _lacks_argument(error, text_and_cause):
        group = mapping.partition(".")[0]
        return (
            f"{mapping}: the chosen option of {group} does not take this argument. The arguments that an option "
            f"takes are in conf/{group}/<option>.yaml; leave the others out."
        )
    if not_overridden and isinstance(error, ConfigCompositionException):
        return keys.unknown(key)
    if "does not support sweep type" in text:
        return INTERVALS
    return _about_value(key, text_and_cause)


def _lacks_argument(error: Exception, text: str) -> bool:
    """Whether an error about a key is that its mapping has no such key. text: the error's, with that of its cause."""
    if not isinstance(error, (ConfigCompositionException, AttributeError)):
        return False
    return re.search(r"Key '.*' is not in struct|Missing mandatory value|has no attribute", text) is not None


def _about_value(key: str, text: str) -> str:
    """The line for an error about the value of a key."""
    if re.search(r"Key '([^']+)' (?:not in|is not in)", text):
        return keys.unknown(key)
    if re.search(r"is not a subclass of|Cannot (?:merge|assign) |DictConfig", text):
        return f"{key}: it is a section, or its value is one. Set the keys of a section one by one."
    return f"{key}: {_first_cause(text)}"


def _about_file(text: str) -> str | None:
    """The line for an option's YAML that holds something else than keys with values, or refers to nothing."""
    content = re.search(r"In '([^']+)': ValidationError raised while composing config", text)
    if content:
        return f"{content[1]}.yaml must hold keys with values, as name: {content[1].rpartition('/')[2]}."
    reference = re.search(r"In '([^']+)': Could not load '([^']+)'", text)
    if reference:
        return f"{reference[2]}: there is no such option, and {reference[1]}.yaml or the command line asks for it."
    name = re.search(r"Error resolving interpolation '(\$\{[^']*\})', possible interpolation keys", text)
    if name:
        return f"{name[1]} cannot stand for an option's name: type the name."
    if "raised while resolving interpolation" in text:  # of an override that another one replaces
        return "a ${...} on the command line refers to nothing: type the value itself."
    return None


def _first_cause(text: str) -> str:
    """The first line of an error that says what is wrong, and what to type instead."""
    cause = text
    for line in text.splitlines():
        if line.strip() and not PLACE.match(line):
            cause = line.strip()
            break
    cause = re.sub(r"^\w+ raised while resolving interpolation: ", "", cause)
    cause = cause.replace("BRACE_CLOSE", "}").strip('".') + "."
    for pattern, instead in INSTEAD.items():
        if re.search(pattern, cause):
            return f"{cause} {instead}"
    return cause


def _unreadable_file(error: yaml.YAMLError | UnicodeDecodeError, folders: list[Path]) -> str:
    """The line for a YAML file that cannot be read: the file, the line and what is wrong there."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        problem = getattr(error, "problem", None) or "it cannot be read"
        return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {problem}."
    files: list[Path] = []
    for folder in folders:
        files += folder.rglob("*.yaml")
    for path in sorted(files):
        try:
            path.read_text(encoding="utf-8")
        except UnicodeDecodeError as wrong:
            return f"{path}: it is no UTF-8 text ({wrong.reason} at byte {wrong.start})."
    return f"a YAML file of the configuration is no UTF-8 text: {' '.join(str(error).split())}."


def _unknown_option(missing: str, folders: list[Path]) -> str:
    """The line for `menu/option` where the menu has no such option."""
    group, _, option = missing.rpartition("/")
    if group.startswith("hydra/"):
        line = f"{group}={option}: it is not installed, or Hydra has no such option."
        if group in NOT_INSTALLED:
            line += f" {NOT_INSTALLED[group]}"
        return line
    known = sorted(menus.options(group, folders))
    suggestion = suggestions.nearest(option, known)
    return f"{group}={option}: there is no such option.{suggestion} {group} has {', '.join(known)}."
