"""The keys that only fit reads: fit.<name>=. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipes.foresight.search.space import DIMENSIONS
from recipes.options import suggestions

KEYS = ("fit.top=5", "fit.keep=[optim]", "fit.measure=3", "fit.gpus=4")
LEAST = {"fit.top": 1, "fit.measure": 0, "fit.gpus": 1}  # of the keys that are numbers


@dataclass(frozen=True)
class Options:
    """What a person asks of the search.

    top: rows to print. keep: levers that are not searched. measure: how many of the rows to run on the installed GPU.
    gpus: the number of GPUs; over several, parallelism is searched. None: not given.
    """

    top: int = 5
    keep: tuple[str, ...] = ()
    measure: int = 0
    gpus: int | None = None


def read_options(argv: list[str]) -> tuple[Options, list[str], list[str]]:
    """(options, the other overrides, problems) of a command line."""
    found: dict[str, Any] = {}
    others, problems = [], []
    for override in argv:
        key, _, text = override.partition("=")
        if not key.startswith("fit."):
            others.append(override)
        elif key in LEAST:
            if text.isdecimal() and int(text) >= LEAST[key]:
                found[key.removeprefix("fit.")] = int(text)
            else:
                problems.append(f"{override}: must be a whole number, {LEAST[key]} or more.")
        elif key == "fit.keep":
            found["keep"] = tuple(filter(None, (name.strip() for name in text.strip("[]").split(","))))
            problems += [
                f"fit.keep: {name} is not searched. Searched are {', '.join(DIMENSIONS)}."
                + suggestions.nearest(name, DIMENSIONS)
                for name in found["keep"]
                if name not in DIMENSIONS
            ]
        else:
            problems.append(
                f"{key}: there is no such key. Fit has {', '.join(KEYS)}."
                + suggestions.nearest(key, [known.split("=")[0] for known in KEYS])
            )
    return Options(**found), others, problems
