"""The command line's words before Hydra reads them."""

from __future__ import annotations

import datetime
from pathlib import Path

from recipes.options import resume
from recipes.ranks import rank_info


def expand_argv(words: list[str], place: rank_info.RankInfo = rank_info.RankInfo()) -> list[str]:
    """A sweep's command line with its folder and its repeats said in Hydra's words; any other as it is.

    Only rank 0 makes a folder: the other ranks of a launcher are told to make none.

    `measure.repeats=N` means all jobs once, then all again. Hydra's first swept word changes slowest, so
    the repeat goes in front.
    """
    sweeping = bool({"-m", "--multirun"} & set(words))
    if not sweeping and place.is_main:
        return words
    first = next((i for i, word in enumerate(words) if "=" in word and not word.startswith("-")), len(words))
    repeats = [word.split("=", 1)[1] for word in words if word.startswith("measure.repeats=")]
    added = []  # beside the first override: the command line's parser wants them all in one place
    if repeats and repeats[-1].isdigit() and int(repeats[-1]) > 1:
        added.append(f"measure.repeat=range({repeats[-1]})")
    if not sweeping:
        # Hydra makes hydra.run.dir; hydra.sweep.dir it only resolves.
        words = [
            word.replace("hydra.run.dir=", "hydra.sweep.dir=", word.startswith("hydra.run.dir=")) for word in words
        ]
        added = [resume.NO_FOLDER]
    elif sweep_folder(words) is None:
        added.append(f"hydra.sweep.dir=outputs/{datetime.datetime.now():%Y-%m-%d/sweep-%H-%M-%S-%f}")
    return [*words[:first], *added, *words[first:]]


def sweep_folder(words: list[str]) -> Path | None:
    """The sweep's folder that a command line names, or None."""
    named = [word.split("=", 1)[1].strip("'\"") for word in words if word.startswith("hydra.sweep.dir=")]
    return Path(named[-1]).absolute() if named and {"-m", "--multirun"} & set(words) else None
