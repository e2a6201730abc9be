"""What a command line asks of fit: its own keys (fit.<name>=), and which GPUs and how many. Never imports torch."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from hydra.core.override_parser.types import Glob, Override

from legroom import paths, suggestions
from legroom.compat import hydra_private
from legroom.foresight.search.space import DIMENSIONS
from legroom.machine import host, instances
from legroom.options import keys, menus

KEYS = (
    "fit.top=5",
    "fit.keep=[optim]",
    "fit.allow=[precision]",
    "fit.gpus=4",
    "fit.sort=speed",
    "fit.prices={a100_80gb:2}",
)
SORTED_BY = ("speed", "cost", "hours")

CHANGING = [key for key, dimension in DIMENSIONS.items() if dimension.changes_numbers]
ASKED = [value for dimension in DIMENSIONS.values() for value in dimension.asked]
# Key that is a list -> what its names are, and which there are.
LISTS = {"fit.keep": ("Searched", DIMENSIONS), "fit.allow": ("Searched when they are allowed", CHANGING + ASKED)}


@dataclass(frozen=True)
class Options:
    """What a person asks of the search.

    top: rows to print. keep: levers that are not searched. allow: levers that change the numbers a training computes,
    and modes of parallelism, which are searched all the same. gpus: the number of GPUs; over several, parallelism is
    searched. None: not given. counts: several numbers of GPUs, which are compared. sort: what several GPUs are sorted
    by, speed, cost or hours of the whole run. prices: option of gpu -> price per hour.
    """

    top: int = 5
    keep: tuple[str, ...] = ()
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
        elif (empty := suggestions.if_empty(key, text)) is not None:
            problems.append(empty)
        elif key in READERS:
            name, read, instead = READERS[key]
            found[name] = read(text)
            problems += [f"{override}: must be {instead}."] if found[name] is None else []
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
    """The lever of that name, which may be the last part of its key: attention for model.attention."""
    return next((key for key in known if key == name or key.endswith(f".{name}")), name)


def _counts(text: str) -> tuple[int, ...] | None:
    """4, or [1,2,4]. None where it cannot be read."""
    numbers = [number.strip() for number in text.strip("[]").split(",")]
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        return None
    return tuple(sorted({int(number) for number in numbers}))


def _rows(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) else None


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
    "fit.top": ("top", _rows, "a whole number, 1 or more"),
    "fit.prices": ("prices", _prices, "prices per hour by GPU: fit.prices={a100_80gb:2,l4_24gb:0.7}"),
    "fit.sort": ("sort", lambda text: text if text in SORTED_BY else None, " or ".join(SORTED_BY)),
}


# --- several GPUs, and several numbers of them --------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """What to train on. gpu: an option of the menu; None: not typed. count: how many of it; None: not given."""

    gpu: str | None
    count: int | None

    @property
    def label(self) -> str:
        """`4 x l4_24gb`."""
        return f"{self.count} x {self.gpu or 'gpu'}" if (self.count or 1) > 1 else self.gpu or "gpu"

    def options(self, options: Options) -> Options:
        """The options of a search for this place alone."""
        return replace(options, gpus=self.count, counts=())

    def overrides(self, others: list[str], options: Options) -> list[str]:
        """The overrides of a search for this place alone. others: those that do not name a GPU."""
        if self.gpu is None:
            return others
        price = options.prices.get(self.gpu)
        priced = [] if price is None else [f"gpu.price_per_hour={price:g}"]
        return [*others, *instances.in_overrides([f"gpu={self.gpu}"]), *priced]

    @property
    def instance(self) -> instances.Instance | None:
        """The machine of a cloud that is named in place of a GPU."""
        return instances.find(self.gpu) if self.gpu else None


def read_places(overrides: list[str], options: Options) -> tuple[list[Place], list[str], list[str]]:
    """(places, the overrides that name no GPU, problems) of a command line without fit's own keys.

    One place where one GPU is asked for.
    """
    names: list[str | None] = [None]
    others, problems = [], []
    for text in overrides:
        override = keys.parsed(text)  # None: what it lacks is said when it is composed
        if override is not None and override.key_or_group == "gpu" and _names_options(override):
            typed = list(dict.fromkeys(_gpus(override)))
            names = [*typed]
            known = list(menus.options("gpu", paths.menus()))
            problems += [] if typed else [f"{text}: no option of the menu gpu has such a name."]
            problems += [
                f"gpu={name}: there is no such option.{suggestions.nearest(name, known)} gpu has {', '.join(known)}."
                for name in typed
                if name not in known
                and len(typed) > 1
                and not instances.is_named(name)  # of one its own search says so
            ]
            problems += [
                instances.unknown(name) for name in typed if instances.is_named(name) and not instances.find(name)
            ]
        elif text in ("-m", "--multirun"):
            problems.append(f"{text}: fit is one search, also over several GPUs: gpu=l4_24gb,a100_80gb. Leave it out.")
        elif override is not None and override.is_sweep_override():
            problems.append(
                f"{text} names several values. fit searches what is left open: type one of them, or leave it out."
            )
        else:
            others.append(text)
    places = [Place(name, count) for count in options.counts or (options.gpus,) for name in names]
    problems += [
        f"fit.prices: {name} is not among the GPUs of the search. Type gpu={name}, or several: gpu={name},a100_80gb."
        for name in options.prices
        if name not in names
    ]
    has_prices = bool(options.prices) or any(place.instance and place.instance.price for place in places)
    if options.sort == "cost" and not has_prices and not any("gpu.price_per_hour=" in text for text in others):
        problems.append(
            "fit.sort=cost needs prices. Add gpu.price_per_hour=2, or fit.prices={a100_80gb:2,l4_24gb:0.7}."
        )
    return places, others, problems


def _names_options(override: Override) -> bool:
    """Whether options follow, and not a deletion or a range of numbers."""
    return not override.is_delete() and (
        isinstance(override.value(), Glob) or hydra_private.values_of(override) is not None
    )


def _gpus(override: Override) -> list[str]:
    """The options that gpu= names: without auto, the installed one, in a pattern where there is none."""
    value = override.value()
    if isinstance(value, Glob):
        found = value.filter(list(menus.options("gpu", paths.menus())))
        return [name for name in found if name != "auto" or host.gpus()]
    return [str(name) for name in hydra_private.values_of(override) or [value]]
