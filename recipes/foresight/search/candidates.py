"""The configurations of a search, and what sketches say of each: how long a step takes, and how much memory at least.

A sketch of each precision, mode of parallelism, checkpointing, attention and batch tells of the passes, and one of each
precision, mode and optimizer of what is done after them. Precisions that differ in speed only, and modes that differ
only in when FSDP gives weights back, have the same.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass

from recipes.errors import Refusal, UnknownOperation
from recipes.foresight.search import extrapolation, space
from recipes.foresight.search.extrapolation import Extrapolation

SAME_OPERATIONS = {"tf32": "fp32"}  # precision -> the one of which it is the same step at another speed
CHEAP = ("sgd", "full", "sdpa")  # what a sketch has where it tells nothing of that lever


@dataclass(frozen=True)
class Candidate:
    """A choice (lever -> value), and what sketches say of it."""

    chosen: dict
    step_seconds: float
    least_bytes: float


def candidates_of(search: space.SearchSpace, capacity_bytes: int, workers) -> tuple[list[Candidate], list[str], int]:
    """(all choices but those whose passes alone take too much, what was refused, how many sketches it took).

    workers: a concurrent.futures.Executor whose processes have imported the libraries.
    """
    tried = {lever: search.values.get(lever, [None]) for lever in space.DIMENSIONS}  # None: pinned
    precisions, modes = {}, {}
    for precision in tried["precision"]:
        precisions.setdefault(SAME_OPERATIONS.get(precision, precision), []).append(precision)
    for mode in tried["parallelism"]:
        own = extrapolation.without_resharding(_config(search, {"parallelism": mode})).parallelism
        modes.setdefault((own.name, own.strategy), []).append(mode)
    groups = []
    for same in itertools.product(precisions.values(), modes.values()):
        optims = [optim for optim in tried["optim"] if search.possible({"parallelism": same[1][0], "optim": optim})]
        if optims:
            groups.append(_Group(search, tried | {"optim": optims}, *same, capacity_bytes, workers))
    made = [candidate for group in groups for candidate in group.candidates()]
    results = [future.result() for group in groups for future in group.asked]
    return made, [why for _, why in results if why], sum(len(sketches) for sketches, _ in results)


class _Group:
    """All choices with one of these precisions and modes, which share their sketches."""

    def __init__(
        self, search: space.SearchSpace, tried: dict, precisions: list, modes: list, capacity_bytes: int, workers
    ):
        self.search, self.tried, self.precisions, self.modes = search, tried, precisions, modes
        self.asked: list = []  # futures of `sketch_chain`
        self.light = {
            lever: next((value for value in values if value in CHEAP), values[0]) for lever, values in tried.items()
        }
        self.light |= {"precision": precisions[0], "parallelism": modes[0]}
        configs = {mode: _config(search, {"parallelism": mode}) for mode in modes}
        self.resharding = [
            mode for mode in modes if extrapolation.without_resharding(configs[mode]) is not configs[mode]
        ]
        names = [precision or search.base.precision.name for precision in precisions]

        def ask(levers: dict, batches: list, as_it_is: bool = False):
            made = [_config(search, self.light | levers | {space.BATCH: batch}) for batch in batches]
            made = made if as_it_is else list(map(extrapolation.without_resharding, made))
            self.asked.append(workers.submit(sketch_chain, made, names, capacity_bytes, bool(self.resharding)))
            return self.asked[-1]

        batches = tried[space.BATCH]
        self.chains = {
            (checkpointing, attention): ask({"checkpointing": checkpointing, "model.attention": attention}, batches)
            for checkpointing in tried["checkpointing"]
            for attention in tried["model.attention"]
        }
        self.steps = {
            optim: ask({"optim": optim}, batches[:1]) for optim in tried["optim"] if optim != self.light["optim"]
        }
        self.steps[self.light["optim"]] = self.chains[self.light["checkpointing"], self.light["model.attention"]]
        self.small = {
            checkpointing: ask({"checkpointing": checkpointing, "parallelism": mode}, batches[:1], as_it_is=True)
            for mode in self.resharding[:1]
            for checkpointing in tried["checkpointing"]
        }

    def candidates(self):
        """Waits for the sketches. What was refused has no candidates."""
        steps = {optim: first for optim, future in self.steps.items() for first in future.result()[0][:1]}
        light = steps.get(self.light["optim"])
        for mode, (checkpointing, attention) in itertools.product(self.modes, self.chains):
            for batch, of_passes in zip(self.tried[space.BATCH], self._passes(mode, checkpointing, attention)):
                for (index, precision), optim in itertools.product(enumerate(self.precisions), steps if light else ()):
                    chosen = {
                        "precision": precision,
                        "checkpointing": checkpointing,
                        "model.attention": attention,
                        "optim": optim,
                        "parallelism": mode,
                        space.BATCH: batch,
                    }
                    if self.search.possible(chosen):
                        passes, step = of_passes[index], steps[optim][index]
                        yield Candidate(
                            _free(chosen),
                            extrapolation.step_seconds(passes, step, light[index]),
                            extrapolation.least_bytes(passes, step),
                        )

    def _passes(self, mode, checkpointing, attention) -> list[list[Extrapolation]]:
        """The sketches of growing batches."""
        made = self.chains[checkpointing, attention].result()[0]
        if mode not in self.resharding:
            return made
        gathered = self.chains[checkpointing, self.light["model.attention"]].result()[0]
        small = self.small[checkpointing].result()[0]
        return (
            [list(map(extrapolation.resharding, told, small[0], gathered[0])) for told in made]
            if small and gathered
            else []
        )


def _config(search: space.SearchSpace, chosen: dict):
    return search.config(_free(chosen))


def _free(chosen: dict) -> dict:
    """A choice without the levers that are pinned."""
    return {lever: value for lever, value in chosen.items() if value is not None}


# --- in a worker ----------------------------------------------------------------------------------------


def sketch_chain(
    configs: list, precisions: list[str], capacity_bytes: int, resharding: bool = False
) -> tuple[list[list[Extrapolation]], str]:
    """(sketches of configurations with growing batches, for each of the precisions; why there are no more, or '').

    None is made after the first whose passes take too much, whatever the optimizer. resharding: they also stand for
    those that give weights back, which take less.
    """
    made: list[list[Extrapolation]] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for cfg in configs:
                made.append(extrapolation.extrapolate(cfg, precisions, folder))
                seen = made[-1][0]
                if seen.pass_bytes - (seen.gathered_bytes if resharding else 0) > capacity_bytes:
                    break
    except (Refusal, UnknownOperation) as error:
        return made, str(error)
    return made, ""
