"""Several GPUs of the menu and several numbers of them, which `fit` searches one after another. Never imports torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from recipes.foresight.search import plan
from recipes.foresight.search.fit_options import Options
from recipes.foresight.search.space import SearchSpace
from recipes.machine import host
from recipes.options import menus, suggestions
from recipes.paths import CONF
from recipes.third_party import hydra_private


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
        return dataclasses.replace(options, gpus=self.count, counts=())

    def overrides(self, others: list[str], options: Options) -> list[str]:
        """The overrides of a search for this place alone. others: those that do not name a GPU."""
        if self.gpu is None:
            return others
        price = options.prices.get(self.gpu)
        return [*others, f"gpu={self.gpu}", *([f"gpu.price_per_hour={price:g}"] if price is not None else [])]


def asked(overrides: list[str], options: Options) -> tuple[list[Place], list[str], list[str]]:
    """(places, the overrides that name no GPU, problems) of a command line without fit's own keys.

    One place where one GPU is asked for.
    """
    names: list[str | None] = [None]
    others, problems = [], []
    for text in overrides:
        override = _parsed(text)
        if override is not None and override.key_or_group == "gpu":
            typed = _gpus(override)
            names = [*dict.fromkeys(typed)]
            known = list(menus.options("gpu", [CONF]))
            problems += [] if typed else [f"{text}: no option of the menu gpu has such a name."]
            problems += [
                f"gpu={name}: there is no such option; gpu has {', '.join(known)}.{suggestions.nearest(name, known)}"
                for name in typed
                if name not in known and len(typed) > 1  # of one GPU its own search says so
            ]
        elif text in ("-m", "--multirun"):
            problems.append(f"{text}: fit is one search, also over several GPUs: gpu=l4_24gb,a100_80gb. Leave it out.")
        elif override is not None and override.is_sweep_override():
            problems.append(
                f"{text} names several values. fit searches what is left open: type one of them, or leave it out."
            )
        else:
            others.append(text)
    counts = options.counts or (options.gpus,)
    places = [Place(name, count) for count in counts for name in names]
    problems += [
        f"fit.prices: {name} is not among the GPUs of the search. Type gpu={name}, or several: gpu={name},a100_80gb."
        for name in options.prices
        if name not in names
    ]
    if options.sort == "cost" and not options.prices and not any("gpu.price_per_hour=" in text for text in others):
        problems.append(
            "fit.sort=cost needs prices. Add gpu.price_per_hour=2, or fit.prices={a100_80gb:2,l4_24gb:0.7}."
        )
    if len(places) > 1 and options.measure:
        problems.append(f"fit.measure={options.measure} runs on the installed GPU: name one GPU, and one fit.gpus.")
    return places, others, problems


def _parsed(text: str) -> Override | None:
    try:
        return hydra_private.parse_override(text)
    except (HydraException, ValueError, RecursionError):  # what it lacks is said when it is composed
        return None


def _gpus(override: Override) -> list[str]:
    """The options that gpu= names: without auto, the installed one, in a pattern where there is none."""
    value = override.value()
    if isinstance(value, Glob):
        found = value.filter(list(menus.options("gpu", [CONF])))
        return [name for name in found if name != "auto" or host.gpus()]
    return [str(name) for name in hydra_private.values_of(override) or [value]]


def plan_all(
    places: list[Place], others: list[str], options: Options
) -> tuple[list[tuple[Place, SearchSpace]], dict[Place, list[str]]]:
    """(the places with their search spaces, the other places with their problems).

    All have the same effective batch, so that their steps can be compared: the typed one, or that of the most GPUs with
    the default of each.
    """
    planned, problems = [], {}
    if options.counts and not any(text.startswith("batch.effective=") for text in others):
        most = max(options.counts)
        for place in places:
            search = (
                plan.plan(place.overrides(others, options), place.options(options))[0] if place.count == most else None
            )
            if search is not None:
                others = [*others, f"batch.effective={search.effective}"]
                break
    for place in places:
        search, found = plan.plan(place.overrides(others, options), place.options(options))
        if search is not None:
            planned.append((place, search))
            continue
        problems[place] = [str(line) for line in found]
        if not planned and _same_everywhere(problems, places):
            break
    return planned, problems


def _same_everywhere(problems: dict[Place, list[str]], places: list[Place]) -> bool:
    """Whether what is wrong has to do neither with the GPU nor with their number: it is so for two of each."""
    if len(problems) < 2 or len({tuple(lines) for lines in problems.values()}) > 1:
        return False
    return all(
        len({getattr(place, side) for place in problems}) >= min(2, len({getattr(place, side) for place in places}))
        for side in ("gpu", "count")
    )
