"""The command line before Hydra reads it: the folder of a sweep, its repeats, and the folder of ranks other than 0."""

import datetime
from pathlib import Path

from legroom import suggestions
from legroom.machine import host
from legroom.options import resume
from legroom.ranks.rank_info import RankInfo

MULTIRUN = {"-m", "--multirun"}
OF_SWEEPS = ("hydra.sweep.", "hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper")
ONLY_RANK = RankInfo()


def expand_argv(argv: list[str], rank_info: RankInfo = ONLY_RANK) -> list[str]:
    """The command line for Hydra: with a sweep's folder and repeats, without a folder for ranks other than 0.

    `measure.repeats=N` runs all jobs once, then all of them again. The first swept override changes slowest, so
    `measure.repeat` goes in front of the others.
    """
    sweeping = bool(MULTIRUN & set(argv))
    if not sweeping and rank_info.is_main:
        return argv
    first = next((i for i, text in enumerate(argv) if "=" in text and not text.startswith("-")), len(argv))
    repeats = [text.split("=", 1)[1] for text in argv if text.startswith("measure.repeats=")]
    added = []  # next to the first override: the parser of the command line takes overrides in one group only
    if repeats and repeats[-1].isdecimal() and int(repeats[-1]) > 1:
        added.append(f"measure.repeat=range({repeats[-1]})")
    if not sweeping:
        # Hydra creates hydra.run.dir; it only resolves hydra.sweep.dir.
        argv = [text.replace("hydra.run.dir=", "hydra.sweep.dir=", text.startswith("hydra.run.dir=")) for text in argv]
        added = [resume.NO_FOLDER]
    elif sweep_folder(argv) is None:
        added.append(f"hydra.sweep.dir=outputs/{datetime.datetime.now():%Y-%m-%d/sweep-%H-%M-%S-%f}")
    return [*argv[:first], *added, *argv[first:]]


def leave_auto_out(overrides: list[str]) -> list[str]:
    """The overrides of estimates over all GPUs without `auto`, the installed GPU, where there is none."""
    if "recipe=estimate" not in overrides or host.gpus():
        return overrides
    return ["gpu=glob(*,exclude=auto)" if text == "gpu=glob(*)" else text for text in overrides]


def only_for_sweeps(overrides: list[str]) -> list[str]:
    """A line for each override that a single run would ignore: of a sweep's folder, of launchers and of sweepers."""
    found = []
    for text in overrides:
        key, _, value = text.lstrip("+~").partition("=")
        if key.startswith(OF_SWEEPS):
            other = f", or type hydra.run.dir={value}" if key == "hydra.sweep.dir" else ", or leave it out"
            found.append(f"{suggestions.shown(text)} is of a sweep, and one run ignores it. Add -m{other}.")
    return found


def sweep_folder(argv: list[str]) -> Path | None:
    """The sweep's folder that a command line names, or None."""
    named = [text.split("=", 1)[1].strip("'\"") for text in argv if text.startswith("hydra.sweep.dir=")]
    return Path(named[-1]).absolute() if named and MULTIRUN & set(argv) else None
