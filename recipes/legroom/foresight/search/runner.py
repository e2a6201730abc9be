"""The search for the fastest configurations that fit: extrapolations decide which configurations are estimated.

Every row of the result is the estimate of that very configuration.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace

from legroom.config import Config
from legroom.errors import Refusal, UnknownOperation
from legroom.foresight import not_followed, prediction, simulation
from legroom.foresight.search import layout_ranking, objective, space
from legroom.foresight.search.candidates import OF_GROUPS, OF_PASSES, Candidate, candidates_of
from legroom.foresight.search.found import Found
from legroom.machine import host
from legroom.models import architectures, builder
from legroom.options import task
from legroom.records.record import Record


@dataclass
class Result:
    """rows: the fastest that fit, or where none does, those that come closest. refused: reasons. The next: counts.
    candidates: all that were extrapolated, or ranked by arithmetic. left_out: the layouts without a row, and why."""

    rows: list[Found]
    refused: list[str]
    extrapolated: int
    estimated: int
    candidates: list[Candidate] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        return any(found.fits for found in self.rows)


def run(
    search: space.SearchSpace,
    top: int,
    workers: Executor,
    show_status: Callable[[str], None] = lambda text: None,
    closest: bool = True,
) -> Result:
    """Search for `top` configurations.

    workers: an executor whose processes have imported the libraries. show_status: called with the progress. closest:
    where nothing can fit, estimate what comes closest.
    """
    if search.layouts:
        return _run_layouts(search, top, workers, show_status)
    capacity = prediction.allocator_bytes(search.base)
    show_status("extrapolating")
    candidates, refused, extrapolated = candidates_of(search, capacity, workers)
    usable = capacity / (1 + (search.base.estimate.margin or 0.0))  # the rest is the margin of what fits
    promising = [one for one in candidates if one.least_bytes <= usable]
    order = sorted(promising, key=lambda one: objective.order(one.step_seconds, search.changes_of(one.chosen)))
    tried, failed = list[Found](), list[tuple[Candidate, int]]()
    for one, found in _estimates(search, _not_hopeless(order, failed), workers):
        tried.append(found)
        if found.outcome is not None and not found.fits:
            failed.append((one, (found.estimate.kept_bytes or 0) - found.estimate.margin_bytes))
        fitting = sum(found.fits for found in tried)
        show_status(f"{len(tried)} estimated, {fitting} fit")
        if fitting >= top:
            break
    rows = [found for found in tried if found.fits]
    if not rows and closest:
        others = sorted((one for one in candidates if one.least_bytes > usable), key=lambda one: one.least_bytes)
        tried += [found for _, found in _estimates(search, others[:top], workers)]
        rows = sorted((found for found in tried if found.outcome), key=lambda found: -found.estimate.margin_bytes)
    else:
        rows.sort(key=lambda found: found.order(search))
    refused += [found.refused for found in tried if found.refused]
    return Result(rows[:top], list(dict.fromkeys(refused)), extrapolated, len(tried), candidates)


def _run_layouts(search: space.SearchSpace, top: int, workers: Executor, show_status: Callable[[str], None]) -> Result:
    """Estimate the best few layouts of those that arithmetic has ranked, each with the levers that suit it."""
    usable = prediction.allocator_bytes(search.base) / (1 + (search.base.estimate.margin or 0.0))
    show_status("ranking layouts")
    ranking = layout_ranking.Ranking(search, usable)
    tried = list[Found]()
    while batch := ranking.next_ones(tried):
        for _, found in _estimates(search, batch, workers):
            tried.append(found)
            show_status(f"{len(tried)} estimated, {sum(found.fits for found in tried)} fit")
    rows = sorted((found for found in tried if found.fits), key=lambda found: found.order(search))
    if not rows:
        rows = sorted((found for found in tried if found.outcome), key=lambda found: -found.estimate.margin_bytes)
    refused = [found.refused for found in tried if found.refused]
    left_out = ranking.left_out(tried, rows[:top])
    return Result(rows[:top], list(dict.fromkeys(refused)), 0, len(tried), ranking.candidates, left_out)


def best(search: space.SearchSpace, workers: Executor) -> Result:
    """The best row of `run`, with fewer extrapolations; or a simpler one that takes at most a twentieth longer."""
    found = _fastest(search, workers)
    if not found.fits:
        return found
    first = found.rows[0]
    most, changes = first.step_seconds * (1 + objective.ALIKE), search.changes_of(first.chosen)
    simpler = [each for each in found.candidates if search.changes_of(each.chosen) < changes]
    usable = prediction.allocator_bytes(search.base) / (1 + (search.base.estimate.margin or 0.0))
    alike = [each for each in simpler if each.step_seconds <= most and each.least_bytes <= usable]
    for each in sorted(alike, key=lambda each: (search.changes_of(each.chosen), each.step_seconds)):
        tried = Found(*workers.submit(predict, search.overrides_of(each.chosen)).result(), each.chosen)
        found.estimated += 1
        if tried.fits and tried.step_seconds <= most:
            found.rows = [tried]
            break
    return found


def _fastest(search: space.SearchSpace, workers: Executor) -> Result:
    """The first row that `run` would find, with fewer extrapolations, where there is one to find.

    What recomputes nothing comes first. With the same other levers a step that recomputes takes as long at least, so
    what already takes too long without is not tried with.
    """
    key, values = "checkpointing", search.values.get("checkpointing", [])
    if "none" not in values or len(values) == 1 or search.base.parallelism.sharded or "parallelism" in search.values:
        return run(search, 1, workers, closest=False)
    found = run(replace(search, values=search.values | {key: ["none"]}), 1, workers, closest=False)
    rest = replace(search, values=search.values | {key: [value for value in values if value != "none"]})
    if found.fits:
        alike: dict[tuple, bool] = {}  # values of the other levers -> whether none of these candidates can be better
        for one in found.candidates:
            least = min(search.changes_of(one.chosen | {key: value}) for value in rest.values[key])
            beaten = objective.order(one.step_seconds, least) >= found.rows[0].order(search)
            levers = [lever for lever in (*OF_PASSES, *OF_GROUPS, space.BATCH) if lever in one.chosen and lever != key]
            chosen = tuple((lever, one.chosen[lever]) for lever in levers)
            alike[chosen] = alike.get(chosen, True) and beaten
        rest.excluded = search.excluded | {chosen for chosen, beaten in alike.items() if beaten}
        if not rest.count():
            return found
    more = run(rest, 1, workers, closest=False)
    rows = sorted(found.rows + more.rows, key=lambda row: row.order(search))[:1]
    extrapolated, estimated = found.extrapolated + more.extrapolated, found.estimated + more.estimated
    candidates = [*found.candidates, *more.candidates]
    return Result(rows, [*found.refused, *more.refused], extrapolated, estimated, candidates)


def _not_hopeless(order: list[Candidate], failed: list[tuple[Candidate, int]]) -> Iterator[Candidate]:
    """Candidates, but for those with the passes of one that does not fit and an optimizer that frees too little.

    failed: those that do not fit, each with the bytes that it lacks; grows while the candidates are taken.
    """
    for one in order:
        passes = one.chosen | {"optim": None}
        alike = [pair for pair in failed if pair[0].chosen | {"optim": None} == passes]
        if all(each.least_bytes - one.least_bytes > lacking for each, lacking in alike):
            yield one


def _estimates(
    search: space.SearchSpace, order: Iterable[Candidate], workers: Executor
) -> Iterator[tuple[Candidate, Found]]:
    """Candidates in their order, with their estimates; as many are computed at once as there are cores."""
    waiting: list[tuple[Candidate, Future]] = []
    for one in itertools.chain(order, itertools.repeat(None, host.usable_cores())):
        if one is not None:
            waiting.append((one, workers.submit(predict, search.overrides_of(one.chosen))))
        if waiting and (one is None or len(waiting) >= host.usable_cores()):
            first, future = waiting.pop(0)
            outcome, refused = future.result()
            yield first, Found(outcome, refused, first.chosen)


# --- in a worker ----------------------------------------------------------------------------------------


def refused_model(cfg: Config) -> str:
    """Why the model of a search cannot be trained with any of its values; '' if it can, as far as its class says."""
    try:
        architecture = builder.configuration(cfg)
        architectures.check_kind(cfg, architecture, task.task_of(cfg, architecture))
    except Refusal as error:
        return str(error)
    return ""


def predict(overrides: list[str]) -> tuple[Record | None, str]:
    """(record, '') of the estimate of a command line, as recipe=estimate gives it; or (None, why it was
    refused)."""
    cfg, outcome, problems = space.compose_estimate(*overrides)
    if cfg is None or outcome is None or problems:
        return None, " ".join(problems)
    try:
        with tempfile.TemporaryDirectory() as folder:
            capacity = prediction.allocator_bytes(cfg)
            simulated = simulation.simulate_step(cfg, folder, capacity, draw_lengths=True)
            prediction.fill(cfg, outcome, simulated)
    except (Refusal, UnknownOperation) as error:
        return None, not_followed.reason(cfg, error)
    return outcome, ""
