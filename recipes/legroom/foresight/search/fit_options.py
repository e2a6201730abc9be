"""The keys that only fit reads: fit.<name>=. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from legroom.foresight.search.space import DIMENSIONS
from legroom.options import suggestions

KEYS = (
    "fit.top=5",
    "fit.keep=[optim]",
    "fit.allow=[precision]",
    "fit.measure=3",
    "fit.gpus=4",
    "fit.sort=speed",
    "fit.prices={a100_80gb:2}",
)
LEAST = {"fit.top": 1, "fit.measure": 0}  # of the keys that are numbers
SORTED_BY = ("speed", "cost")

CHANGING = [key for key, dimension in DIMENSIONS.items() if dimension.changes_numbers]
# Key that is a list -> what its names are, and which there are.
LISTS = {"fit.keep": ("Searched", DIMENSIONS), "fit.allow": ("Searched when they are allowed", CHANGING)}


@dataclass(frozen=True)
class Options:
    """What a person asks of the search.

    top: rows to print. keep: levers that are not searched. allow: levers that change the numbers a training computes,
    and are searched all the same. measure: how many of the rows to run on the installed GPU.
    gpus: the number of GPUs; over several, parallelism is searched. None: not given. counts: several numbers of GPUs,
    which are compared. sort: what several GPUs are sorted by, speed or cost. prices: option of gpu -> price per hour.
    """

    top: int = 5
    keep: tuple[str, ...] = ()
    measure: int = 0
    gpus: int | None = None
    allow: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    sort: str = "speed"
    prices: dict[str, float] = field(default_factory=dict)


def read_options(argv: list[str]) -> tuple[Options, list[str], list[str]]:
    """(options, the other overrides, problems) of a command line."""
    found: dict[str, Any] = {}
    others, problems = [], []
    for override in argv:
        key, _, text = override.partition("=")
        if not key.startswith("fit."):
            others.append(override)
        elif key in READERS:
            name, read, instead = READERS[key]
            found[name] = read(text)
            problems += [f"{override}: must be {instead}."] if found[name] is None else []
        elif key in LEAST:
            if text.isdecimal() and int(text) >= LEAST[key]:
                found[key.removeprefix("fit.")] = int(text)
            else:
                problems.append(f"{override}: must be a whole number, {LEAST[key]} or more.")
        elif key in LISTS:
            which, known = LISTS[key]
            names = tuple(_lever(name.strip(), known) for name in text.strip("[]").split(",") if name.strip())
            found[key.removeprefix("fit.")] = names
            problems += [
                f"{key}: {name} is not searched. {which} are {', '.join(known)}." + suggestions.nearest(name, known)
                for name in names
                if name not in known
            ]
        else:
            problems.append(
                f"{key}: there is no such key. Fit has {', '.join(KEYS)}."
                + suggestions.nearest(key, [known.split("=")[0] for known in KEYS])
            )
    both = set(found.get("keep", ())) & set(found.get("allow", ()))
    problems += [f"fit.keep and fit.allow both name {name}. Leave it out of one of them." for name in sorted(both)]
    if problems:
        return Options(), others, problems
    counts = found.pop("counts", ())
    if len(counts) == 1:
        return Options(**found, gpus=counts[0]), others, problems
    return Options(**found, counts=counts), others, problems


def _lever(name: str, known: Collection[str]) -> str:
    """The lever of that name, which may be the last part of its key: packing for data.packing."""
    return next((key for key in known if key == name or key.endswith(f".{name}")), name)


def _counts(text: str) -> tuple[int, ...] | None:
    """4, or [1,2,4]. None where it cannot be read."""
    numbers = [number.strip() for number in text.strip("[]").split(",")]
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        return None
    return tuple(sorted({int(number) for number in numbers}))


def _prices(text: str) -> dict[str, float] | None:
    """{a100_80gb:2,l4_24gb:0.7}. None where it cannot be read."""
    prices = {}
    for pair in text.strip("{} ").split(","):
        name, _, price = pair.partition(":")
        try:
            prices[name.strip()] = float(price)
        except ValueError:
            return None
    return prices if all(0 < price < math.inf for price in prices.values()) else None


# Key -> the field of Options, what reads it, and what it must be.
READERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "fit.gpus": ("counts", _counts, "a whole number, 1 or more, or several: fit.gpus=[1,2,4]"),
    "fit.prices": ("prices", _prices, "prices per hour by GPU: fit.prices={a100_80gb:2,l4_24gb:0.7}"),
    "fit.sort": ("sort", lambda text: text if text in SORTED_BY else None, " or ".join(SORTED_BY)),
}
