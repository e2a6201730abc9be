"""The flags of a command line: Hydra's own, wherever they stand, and those of other programs, which are refused."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from legroom import paths, suggestions
from legroom.compat import hydra_private
from legroom.errors import Refusal
from legroom.options import keys

CONFIG_DIR = {"-cd", "--config-dir"}
CONFIG_PATH = {"-cp", "--config-path"}
SEARCH_PATH = "hydra.searchpath"
NO_JOBS = {"--hydra-help", "-sc", "--shell-completion"}  # after these Hydra prints something and runs no jobs
SHOWS = {"--cfg", "-c", "--info", "-i"}  # what is composed, for a sweep as well
MISSPELT = 0.75  # as close to one of Hydra's flags as a flag must be that means it
RERUN = "--experimental-rerun"  # it opens a pickle, which can run any code


class CommandLine(NamedTuple):
    """flags: with their values. overrides: all that is no flag. problems: a line for each flag that does not exist."""

    flags: list[str]
    overrides: list[str]
    problems: list[str]

    @property
    def names(self) -> set[str]:
        """The flags without their values."""
        return {text.partition("=")[0] for text in self.flags}

    @property
    def config_dir(self) -> str | None:
        """The folder of more menus that --config-dir names."""
        for place, text in enumerate(self.flags):
            name, equals, value = text.partition("=")
            if name in CONFIG_DIR:
                return value if equals else self.flags[place + 1]
        return None


def split(argv: list[str]) -> CommandLine:
    """The flags and the overrides of a command line, wherever they stand.

    Hydra's parser takes overrides in one group only: `optim=adamw,sgd -m data.seq_len=32` is an error there.
    """
    flags, overrides, problems = [], [], []
    known = hydra_private.flags()
    rest = [text for text in argv if text != "--"]
    while rest:
        text = rest.pop(0)
        if text == "hydra.mode=MULTIRUN":
            flags.append("--multirun")
            continue
        if not text.startswith("-"):
            overrides.append(text)
            continue
        typed, equals, value = text.partition("=")
        name = _full_name(typed, known)
        value_follows = not equals and bool(rest) and not rest[0].startswith("-")
        if name is None:
            if value_follows and "=" not in rest[0] and not rest[0].startswith("~"):
                equals, value = "=", rest.pop(0)
            problems.append(_foreign(typed, value if equals else None))
            continue
        if name == RERUN:
            problems.append(f"{RERUN} is not supported. A run's page has the command that repeats it.")
        flags.append(name + equals + value)
        if value_follows and (known[name].takes_value or rest[0] in known[name].optional_values):
            flags.append(rest.pop(0))
    if not problems:
        problem = hydra_private.flag_problem(flags)
        if problem:
            problems.append(f"{problem}.")
    return CommandLine(flags, overrides, problems)


def own_menus(line: CommandLine) -> tuple[list[Path] | None, list[str]]:
    """(the folders of a person's own menus, what named them): --config-dir, and hydra.searchpath.

    None in place of the folders where one of them is none, as pkg://package.
    """
    folders, typed = [], []
    if line.config_dir is not None:
        folders.append(paths.expanded(line.config_dir))
        typed.append(f"--config-dir={line.config_dir}")
    for text in line.overrides:
        override = keys.parsed(text)
        if override is None or override.key_or_group != SEARCH_PATH:
            continue
        places = override.value()
        if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
            continue  # which Hydra refuses
        typed.append(text)
        if any("://" in place and not place.startswith("file://") for place in places):
            return None, typed
        folders += [paths.expanded(place.removeprefix("file://")) for place in places]
    return folders, typed


def take_own_menus(argv: list[str]) -> list[str]:
    """A command line without what names folders of a person's own menus, which this process then looks through.

    Raises Refusal for a folder that is not there.
    """
    line = split(argv)
    folders, typed = own_menus(line)
    for folder in folders or ():
        if not folder.is_dir():
            raise Refusal(f"{' '.join(typed)}: there is no folder {folder}. Name one that has menus, as mine/optim/.")
    paths.remember_menus(typed, folders or ())
    kept = []
    is_value = False  # of --config-dir, as an argument of its own
    for text in argv:
        name, equals, _ = text.partition("=")
        if is_value:
            is_value = False
        elif name in CONFIG_DIR:
            is_value = not equals
        elif name != SEARCH_PATH:
            kept.append(text)
    return kept


def _full_name(typed: str, known: Collection[str]) -> str | None:
    """Hydra's flag of a name, or of the start of a long one, which its parser accepts, too."""
    if typed in known:
        return typed
    if not typed.startswith("--"):
        return None
    matches = [name for name in known if name.startswith(typed)]
    return matches[0] if len(matches) == 1 else None


def _foreign(flag: str, value: str | None) -> str:
    """The line for a flag that is not Hydra's, as `--learning_rate 1e-4`."""
    typed = flag if value is None else f"{flag}={value}"
    suggestion = suggestions.nearest(flag, hydra_private.flags(), MISSPELT)
    if not suggestion:
        suggestion = keys.suggestion(flag.lstrip("-"), value)
    return f"{suggestions.shown(typed)}: there is no such flag; keys have no dashes.{suggestion}"
