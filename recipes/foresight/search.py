"""The fastest configurations that fit a GPU. What is shown of one is its own estimate; sketches say which are worth it.

workers: a concurrent.futures.Executor whose processes have imported the libraries.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from typing import Callable

from recipes import estimate, fit, machine, record
from recipes.foresight import forecast, sketch
from recipes.foresight.device import Unknown
from recipes.foresight.sketch import Sketch
from recipes.refusal import Refusal

SAME_OPERATIONS = {"tf32": "fp32"}  # precision -> the one of which it is the same step at another speed
CHEAP = ("sgd", "full", "sdpa")  # what a sketch has where it tells nothing of that lever


@dataclass(frozen=True)
class Candidate:
    """A choice (lever -> value), and what sketches say of it."""

    chosen: dict
    step_seconds: float
    least_bytes: float


@dataclass
class Found:
    """A choice with the record of its estimate; None where it was refused, with the reason."""

    chosen: dict
    outcome: record.Record | None
    refused: str = ""

    @property
    def fits(self) -> bool:
        return self.outcome is not None and self.outcome.estimate.fits


@dataclass
class Result:
    """rows: the fastest that fit, or where none does what comes closest. refused: reasons. The rest are counts."""

    rows: list[Found]
    refused: list[str]
    sketched: int
    estimated: int

    @property
    def fits(self) -> bool:
        return any(found.fits for found in self.rows)


def run(search: fit.Search, top: int, workers, tell: Callable[[str], None] = lambda text: None) -> Result:
    """Search. top: how many rows. tell: hears how it goes."""
    capacity = estimate.allocator_bytes(search.base)
    tell("sketching")
    candidates, refused, sketched = candidates_of(search, capacity, workers)
    promising = [one for one in candidates if one.least_bytes <= capacity]
    tried: list[Found] = []
    for found in _estimates(search, sorted(promising, key=lambda one: one.step_seconds), workers):
        tried.append(found)
        tell(f"{len(tried)} estimated, {sum(found.fits for found in tried)} fit")
        if sum(found.fits for found in tried) == top:
            break
    rows = [found for found in tried if found.fits]
    if not rows:
        others = sorted((one for one in candidates if one.least_bytes > capacity), key=lambda one: one.least_bytes)
        tried += _estimates(search, others[:top], workers)
        rows = sorted((found for found in tried if found.outcome), key=lambda found: -found.outcome.estimate.margin_bytes)
    else:
        rows.sort(key=lambda found: found.outcome.speed.step_seconds_median)
    refused += [found.refused for found in tried if found.refused]
    return Result(rows[:top], list(dict.fromkeys(refused)), sketched, len(tried))


def _estimates(search: fit.Search, order: list[Candidate], workers):
    """Estimates in that order, with as many on the way as there are cores."""
    waiting = []
    for one in itertools.chain(order, itertools.repeat(None, machine.usable_cores())):
        if one is not None:
            waiting.append((one, workers.submit(predict, search.command_words(one.chosen))))
        if waiting and (one is None or len(waiting) > machine.usable_cores()):
            first, future = waiting.pop(0)
            yield Found(first.chosen, *future.result())


def candidates_of(search: fit.Search, capacity_bytes: int, workers) -> tuple[list[Candidate], list[str], int]:
    """(all choices but those whose passes alone take too much, what was refused, how many sketches it took).

    A sketch of each precision, checkpointing, attention and batch tells of the passes, one of each precision and
    optimizer of what is done after them.
    """
    tried = {lever: search.values.get(lever, [None]) for lever in fit.LEVERS}  # None: pinned
    light = {lever: next((value for value in values if value in CHEAP), values[0]) for lever, values in tried.items()}
    batches, same = tried[fit.BATCH], {}
    for precision in tried["precision"]:
        same.setdefault(SAME_OPERATIONS.get(precision, precision), []).append(precision)

    def look(precisions: list, batches: list, levers: dict):
        chosen = light | {"precision": precisions[0]} | levers
        configs = [search.config(_free(chosen | {fit.BATCH: batch})) for batch in batches]
        names = [precision or search.base.precision.name for precision in precisions]
        return workers.submit(sketch_chain, configs, names, capacity_bytes)

    passes = [(precisions, told, look(precisions, batches, told)) for precisions, checkpointing, attention in
              itertools.product(same.values(), tried["checkpointing"], tried["model.attention"])
              for told in [{"checkpointing": checkpointing, "model.attention": attention}]]
    steps = {(precisions[0], optim): look(precisions, batches[:1], {"optim": optim})
             for precisions in same.values() for optim in tried["optim"]}
    results = [future.result() for future in (*(future for _, _, future in passes), *steps.values())]
    made = []
    for precisions, told, future in passes:
        for (batch, of_passes), optim in itertools.product(zip(batches, future.result()[0]), tried["optim"]):
            for precision, one, other in zip(precisions, of_passes, *steps[precisions[0], optim].result()[0]):
                chosen = {"precision": precision, **told, "optim": optim, fit.BATCH: batch}
                made.append(Candidate(_free(chosen), sketch.step_seconds(one, other), sketch.least_bytes(one, other)))
    return made, [why for _, why in results if why], sum(len(sketches) for sketches, _ in results)


def _free(chosen: dict) -> dict:
    """A choice without the levers that are pinned."""
    return {lever: value for lever, value in chosen.items() if value is not None}


# --- in a worker ----------------------------------------------------------------------------------------


def sketch_chain(configs: list, precisions: list[str], capacity_bytes: int) -> tuple[list[list[Sketch]], str]:
    """(sketches of configurations with growing batches, for each of the precisions; why there are no more, or '').

    None is made after the first whose passes take too much, whatever the optimizer.
    """
    made: list[list[Sketch]] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for cfg in configs:
                made.append(sketch.sketch(cfg, precisions, folder))
                if made[-1][0].pass_bytes > capacity_bytes:
                    break
    except (Refusal, Unknown) as error:
        return made, str(error)
    return made, ""


def predict(words: list[str]) -> tuple[record.Record | None, str]:
    """(record, '') of the estimate of a command line, as recipe=estimate gives it; or (None, why it was refused)."""
    cfg, outcome, problems = fit.compose(*words)
    if problems:
        return None, " ".join(problems)
    try:
        with tempfile.TemporaryDirectory() as folder:
            estimate.fill(cfg, outcome, forecast.foresee(cfg, folder, estimate.allocator_bytes(cfg)))
    except (Refusal, Unknown) as error:
        return None, str(error)
    return outcome, ""
