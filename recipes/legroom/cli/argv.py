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
    added = []
    if not sweeping:
        added.append(resume.NO_FOLDER)
        argv = [_without_folder(text) for text in argv]
    else:
        repeats = _last_value(argv, "measure.repeats")
        if repeats is not None and repeats.isdecimal() and int(repeats) > 1:
            added.append(f"measure.repeat=range({repeats})")
        if sweep_folder(argv) is None:
            added.append(f"hydra.sweep.dir=outputs/{datetime.datetime.now():%Y-%m-%d/sweep-%H-%M-%S-%f}")
    # In front of the first override: Hydra's parser of the command line takes overrides in one group only.
    for index, text in enumerate(argv):
        if "=" in text and not text.startswith("-"):
            return [*argv[:index], *added, *argv[index:]]
    return [*argv, *added]


def _without_folder(text: str) -> str:
    """An override for a rank other than 0: Hydra creates hydra.run.dir, and only resolves hydra.sweep.dir."""
    if text.startswith("hydra.run.dir="):
        return text.replace("hydra.run.dir=", "hydra.sweep.dir=", 1)
    return text


def _last_value(argv: list[str], key: str) -> str | None:
    """The value of a key on the command line, the last one if it is there twice; None where it is not."""
    value = None
    for text in argv:
        if text.startswith(f"{key}="):
            value = text.partition("=")[2]
    return value


def leave_auto_out(overrides: list[str]) -> list[str]:
    """The overrides of estimates over all GPUs without `auto`, the installed GPU, where there is none."""
    if "recipe=estimate" not in overrides or host.gpus():
        return overrides
    replaced = {"gpu=glob(*)": "gpu=glob(*,exclude=auto)"}
    return [replaced.get(text, text) for text in overrides]


def only_for_sweeps(overrides: list[str]) -> list[str]:
    """A line for each override that a single run would ignore: of a sweep's folder, of launchers and of sweepers."""
    problems = []
    for text in overrides:
        key, _, value = text.lstrip("+~").partition("=")
        if not key.startswith(OF_SWEEPS):
            continue
        instead = "leave it out"
        if key == "hydra.sweep.dir":
            instead = f"type hydra.run.dir={value}"
        problems.append(f"{suggestions.shown(text)} is of a sweep, and one run ignores it. Add -m, or {instead}.")
    return problems


def sweep_folder(argv: list[str]) -> Path | None:
    """The sweep's folder that a command line names, or None."""
    folder = _last_value(argv, "hydra.sweep.dir")
    if folder is None or not MULTIRUN & set(argv):
        return None
    return Path(folder.strip("'\"")).absolute()
