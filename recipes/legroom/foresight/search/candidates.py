"""The configurations of a search, with the seconds and a lower bound on the memory of each, from extrapolations.

One extrapolation for each precision, mode of parallelism, adapter, batch and values of OF_PASSES gives the forward and
backward passes, and one for each precision, mode, adapter and optimizer gives the rest of the step.
Precisions that differ in speed only, and modes that differ only in when FSDP frees gathered weights, share their
extrapolations. Steps inside the backward pass have extrapolations of their own.
"""

import itertools
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from legroom.config import Config
from legroom.errors import Refusal, UnknownOperation
from legroom.foresight import not_followed
from legroom.foresight.search import extrapolation, space
from legroom.foresight.search.extrapolation import Extrapolation
from legroom.levers.optim.rules import IN_BACKWARD
from legroom.levers.parallelism.rules import CONTEXT, EXPERTS, STAGE, STAGES, SYNC_EACH_BATCH

SAME_OPERATIONS = {"tf32": "fp32"}  # precision -> the one that runs the same operations at another speed
CHEAP = ("sgd", "full", "auto", "standard")  # the value of a lever in extrapolations that are not about it

# Levers of whose values each has extrapolations of its own.
OF_GROUPS = ("adapter", IN_BACKWARD, EXPERTS, CONTEXT, STAGE, STAGES)
# Levers on which the forward and backward passes depend.
OF_PASSES = ("checkpointing", "model.attention", "loss", SYNC_EACH_BATCH)


@dataclass(frozen=True)
class Candidate:
    """A choice (lever -> value), its predicted seconds of a step, and a lower bound on its memory."""

    chosen: dict[str, Any]
    step_seconds: float
    least_bytes: float


def candidates_of(
    search: space.SearchSpace, capacity_bytes: int, workers: Executor
) -> tuple[list[Candidate], list[str], int]:
    """(all choices but those whose passes alone take too much, what was refused, number of extrapolations).

    workers: an executor whose processes have imported the libraries.
    """
    tried = {lever: search.values.get(lever, [None]) for lever in space.DIMENSIONS}  # None: pinned
    precisions, modes = {}, {}
    for precision in tried["precision"]:
        precisions.setdefault(SAME_OPERATIONS.get(precision, precision), []).append(precision)
    for mode in tried["parallelism"]:
        kept = extrapolation.without_resharding(_config(search, {"parallelism": mode})).parallelism
        modes.setdefault((kept.kind, kept.strategy), []).append(mode)
    groups = []
    for alike, together, *values in itertools.product(
        precisions.values(), modes.values(), *(tried[lever] for lever in OF_GROUPS)
    ):
        fixed = {"parallelism": together[0], **dict(zip(OF_GROUPS, values))}
        own = tried | {lever: [value] for lever, value in fixed.items()} | {"precision": alike}
        for lever in ("precision", "optim", space.BATCH):
            own[lever] = [value for value in own[lever] if search.possible(fixed | {lever: value})]
        if all(own.values()) and search.possible(fixed):
            groups.append(_Group(search, own, together, capacity_bytes, workers))
    made = [candidate for group in groups for candidate in group.candidates()]
    results = [future.result() for group in groups for future in group.submitted]
    return made, [why for _, why in results if why], sum(len(chain) for chain, _ in results)


class _Group:
    """All choices with one of these precisions and modes, which share their extrapolations."""

    def __init__(
        self, search: space.SearchSpace, tried: dict[str, list], modes: list, capacity_bytes: int, workers: Executor
    ):
        self.search, self.tried, self.precisions, self.modes = search, tried, tried["precision"], modes
        self.capacity_bytes, self.workers = capacity_bytes, workers
        self.submitted: list[Future] = []  # of `extrapolate_chain`
        self.light = {
            lever: next((value for value in values if value in CHEAP), values[0]) for lever, values in tried.items()
        }
        self.light |= {"precision": self.precisions[0], "parallelism": modes[0]}
        configs = {mode: _config(search, {"parallelism": mode}) for mode in modes}
        self.resharding = [
            mode for mode in modes if extrapolation.without_resharding(configs[mode]) is not configs[mode]
        ]
        batches = tried[space.BATCH]
        self.batches = {
            values: [batch for batch in batches if search.possible(self.light | _of_passes(values, batch))]
            for values in itertools.product(*(tried[lever] for lever in OF_PASSES))
        }
        self.chains = {
            values: self._submit(dict(zip(OF_PASSES, values)), possible)
            for values, possible in self.batches.items()
            if possible
        }
        if self.chains and tuple(self.light[lever] for lever in OF_PASSES) not in self.chains:  # it is excluded
            self.light |= dict(zip(OF_PASSES, next(iter(self.chains))))
        self.steps = {
            optim: self._submit({"optim": optim}, batches[:1])
            for optim in tried["optim"]
            if self.chains and optim != self.light["optim"]
        }
        if self.chains:
            self.steps[self.light["optim"]] = self.chains[tuple(self.light[lever] for lever in OF_PASSES)]
        self.small = {
            checkpointing: self._submit(
                {"checkpointing": checkpointing, "parallelism": mode}, batches[:1], resharding=True
            )
            for mode in self.resharding[:1]
            for checkpointing in tried["checkpointing"]
        }

    def _submit(self, levers: dict[str, Any], batches: list, resharding: bool = False) -> Future:
        """Extrapolate in a worker, for growing batches. resharding: as configured; otherwise weights stay gathered."""
        configs = [_config(self.search, self.light | levers | {space.BATCH: batch}) for batch in batches]
        if not resharding:
            configs = list(map(extrapolation.without_resharding, configs))
        precisions = [precision or self.search.base.precision.kind for precision in self.precisions]
        future = self.workers.submit(extrapolate_chain, configs, precisions, self.capacity_bytes, bool(self.resharding))
        self.submitted.append(future)
        return future

    def candidates(self) -> Iterator[Candidate]:
        """Wait for the extrapolations, and combine them. What was refused gives no candidates."""
        steps = {optim: first for optim, future in self.steps.items() for first in future.result()[0][:1]}
        light = steps.get(self.light["optim"])
        if light is None:  # each time is a difference to it
            return
        for mode, values in itertools.product(self.modes, self.chains):
            for batch, of_passes in zip(self.batches[values], self._passes(mode, values)):
                for (index, precision), optim in itertools.product(enumerate(self.precisions), steps):
                    chosen = {
                        **_of_passes(values, batch),
                        "precision": precision,
                        **{lever: self.light[lever] for lever in OF_GROUPS},
                        "optim": optim,
                        "parallelism": mode,
                    }
                    if self.search.possible(chosen):
                        passes, step = of_passes[index], steps[optim][index]
                        seconds = extrapolation.step_seconds(passes, step, light[index])
                        bound = extrapolation.least_bytes(passes, step)
                        yield Candidate(_without_pinned(chosen), seconds, bound)

    def _passes(self, mode: str | None, values: tuple[str | None, ...]) -> list[list[Extrapolation]]:
        """The extrapolations of growing batches, one for each precision. values: of OF_PASSES."""
        made = self.chains[values].result()[0]
        if mode not in self.resharding:
            return made
        checkpointing = values[0]
        light = (checkpointing, *(self.light[lever] for lever in OF_PASSES[1:]))
        gathered = self.chains[light].result()[0]
        small = self.small[checkpointing].result()[0]
        if not small or not gathered:
            return []
        return [list(map(extrapolation.resharding, of_batch, small[0], gathered[0])) for of_batch in made]


def _of_passes(values: tuple[Any, ...], batch: int | None) -> dict[str, Any]:
    return {**dict(zip(OF_PASSES, values)), space.BATCH: batch}


def _config(search: space.SearchSpace, chosen: dict[str, Any]) -> Config:
    return search.config(_without_pinned(chosen))


def _without_pinned(chosen: dict[str, Any]) -> dict[str, Any]:
    return {lever: value for lever, value in chosen.items() if value is not None}


# --- in a worker ----------------------------------------------------------------------------------------


def extrapolate_chain(
    configs: list[Config],
    precisions: list[str],
    capacity_bytes: int,
    resharding: bool = False,
) -> tuple[list[list[Extrapolation]], str]:
    """Extrapolate configurations with growing batches, until the passes of one take too much with any optimizer.

    resharding: the extrapolations also serve for strategies that free gathered weights, which take less. Returns the
    extrapolations, a list with one for each precision for each configuration, and why there are no more, or ''.
    """
    made: list[list[Extrapolation]] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for cfg in configs:
                made.append(extrapolation.extrapolate(cfg, precisions, folder))
                first = made[-1][0]
                if first.pass_bytes - (first.gathered_bytes if resharding else 0) > capacity_bytes:
                    break
    except (Refusal, UnknownOperation) as error:
        return made, not_followed.reason(configs[0], error)
    return made, ""
