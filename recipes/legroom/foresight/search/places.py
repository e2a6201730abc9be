"""Several GPUs of the menu and several numbers of them, which `fit` searches one after another. Never imports torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from legroom.foresight.search import plan
from legroom.foresight.search.fit_options import Options
from legroom.foresight.search.space import SearchSpace
from legroom.machine import host
from legroom.options import menus, suggestions
from legroom.paths import CONF
from legroom.third_party import hydra_private


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
        if override is not None and override.key_or_group == "gpu" and _names_options(override):
            typed = list(dict.fromkeys(_gpus(override)))
            names = [*typed]
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


def _names_options(override: Override) -> bool:
    """Whether options follow, and not a deletion or a range of numbers."""
    return not override.is_delete() and (
        isinstance(override.value(), Glob) or hydra_private.values_of(override) is not None
    )


def _gpus(override: Override) -> list[str]:
    """The options that gpu= names: without auto, the installed one, in a pattern where there is none."""
    value = override.value()
    if isinstance(value, Glob):
        found = value.filter(list(menus.options("gpu", [CONF])))
        return [name for name in found if name != "auto" or host.gpus()]
    return [str(name) for name in hydra_private.values_of(override) or [value]]


def plan_all(
    places: list[Place], others: list[str], options: Options, show_status: Callable[[str], None] = lambda text: None
) -> tuple[list[tuple[Place, SearchSpace]], dict[Place, list[str]]]:
    """(the places with their search spaces, the other places with their problems).

    All have the same effective batch, so that their steps can be compared: the typed one, or that of the most GPUs that
    can be searched, with the default of each. show_status: called with the progress.
    """
    if options.counts and not any(text.startswith("batch.effective=") for text in others):
        most_first = sorted(places, key=lambda place: -(place.count or 1))
        found = (search for _, search, _ in _plans(most_first, others, options, show_status) if search is not None)
        others = [*others, *(f"batch.effective={search.effective}" for search in itertools.islice(found, 1))]
    planned, problems = [], {}
    for place, search, lines in _plans(places, others, options, show_status):
        if search is not None:
            planned.append((place, search))
        else:
            problems[place] = lines
    return planned, problems


def _plans(
    places: list[Place], others: list[str], options: Options, show_status: Callable[[str], None]
) -> Iterator[tuple[Place, SearchSpace | None, list[str]]]:
    """(place, its search space or None, its problems), one after another.

    Where the first two GPUs have the same problems, these have nothing to do with the GPU, and are those of all in that
    number.
    """
    said: dict[int | None, list[list[str]]] = {}
    for number, place in enumerate(places, 1):
        show_status(f"{number} of {len(places)}, {place.label}: what can be searched")
        first = said.setdefault(place.count, [])
        if len(first) > 1 and first[0] == first[1] != []:
            yield place, None, first[0]
            continue
        search, found = plan.plan(place.overrides(others, options), place.options(options))
        lines = [str(line) for line in found]
        first.append(lines)
        yield place, search, lines
