"""The configurations of a search, and what sketches say of each: how long a step takes, and how much memory at least.

A sketch of each precision, kind of parallelism, checkpointing, attention and batch tells of the passes, and one of each
precision, kind of parallelism and optimizer of what is done after them.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass

from recipes import fit
from recipes.foresight import sketch
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


def candidates_of(search: fit.Search, capacity_bytes: int, workers) -> tuple[list[Candidate], list[str], int]:
    """(all choices but those whose passes alone take too much, what was refused, how many sketches it took).

    workers: a concurrent.futures.Executor whose processes have imported the libraries.
    """
    tried = {lever: search.values.get(lever, [None]) for lever in fit.LEVERS}  # None: pinned
    precisions, modes = {}, {}
    for precision in tried["precision"]:
        precisions.setdefault(SAME_OPERATIONS.get(precision, precision), []).append(precision)
    for mode in tried["parallelism"]:
        own = sketch.without_resharding(search.config(_free({"parallelism": mode}))).parallelism
        modes.setdefault((own.name, own.strategy), []).append(mode)
    groups = [_Group(search, tried, *alike, capacity_bytes, workers)
              for alike in itertools.product(precisions.values(), modes.values())]
    made = [candidate for group in groups for candidate in group.candidates()]
    results = [future.result() for group in groups for future in group.asked]
    return made, [why for _, why in results if why], sum(len(sketches) for sketches, _ in results)


class _Group:
    """The sketches of precisions that differ in speed only, and of modes that differ in what stays gathered only."""

    def __init__(self, search: fit.Search, tried: dict, precisions: list, modes: list, capacity_bytes: int, workers):
        self.search, self.tried, self.precisions, self.modes = search, tried, precisions, modes
        self.asked = []  # futures
        self.resharding = {mode: sketch.without_resharding(cfg) != cfg for mode in modes
                           for cfg in [search.config(_free({"parallelism": mode}))]}
        self.light = {lever: next((value for value in values if value in CHEAP), values[0]) for lever, values in tried.items()}
        self.light |= {"precision": precisions[0], "parallelism": modes[0]}
        self.optims = [optim for optim in tried["optim"] if search.possible(self.light | {"optim": optim})]
        if not self.optims:
            return
        if self.light["optim"] not in self.optims:
            self.light["optim"] = self.optims[0]

        def ask(levers: dict, batches: list, gathered: bool = True):
            configs = [search.config(_free(self.light | levers | {fit.BATCH: batch})) for batch in batches]
            if gathered:
                configs = list(map(sketch.without_resharding, configs))
            names = [precision or search.base.precision.name for precision in precisions]
            self.asked.append(workers.submit(sketch_chain, configs, names, capacity_bytes, any(self.resharding.values())))
            return self.asked[-1]

        batches = tried[fit.BATCH]
        self.chains = {(checkpointing, attention): ask({"checkpointing": checkpointing, "model.attention": attention}, batches)
                       for checkpointing, attention in itertools.product(tried["checkpointing"], tried["model.attention"])}
        self.steps = {optim: ask({"optim": optim}, batches[:1]) for optim in self.optims if optim != self.light["optim"]}
        self.steps[self.light["optim"]] = self.chains[self.light["checkpointing"], self.light["model.attention"]]
        self.resharded = {}
        if any(self.resharding.values()):
            giving_back = {"parallelism": next(mode for mode, gives_back in self.resharding.items() if gives_back)}
            self.resharded = {checkpointing: ask(giving_back | {"checkpointing": checkpointing}, batches[:1], gathered=False)
                              for checkpointing in tried["checkpointing"]}

    def candidates(self):
        """Waits for the sketches. What was refused has no candidates."""
        first = {optim: future.result()[0][:1] for optim, future in self.steps.items()} if self.optims else {}
        for mode, (levers, future) in itertools.product(self.modes, self.chains.items() if self.optims else ()):
            checkpointing, attention = levers
            for batch, of_passes in zip(self.tried[fit.BATCH], future.result()[0]):
                if self.resharding[mode]:
                    of_passes = self._resharded(checkpointing, of_passes)
                for optim, (index, precision) in itertools.product(self.optims, enumerate(self.precisions)):
                    chosen = {"precision": precision, "checkpointing": checkpointing, "model.attention": attention,
                              "optim": optim, "parallelism": mode, fit.BATCH: batch}
                    if not (of_passes and first[optim] and first[self.light["optim"]] and self.search.possible(chosen)):
                        continue
                    passes, step, light = (told[index] for told in (of_passes, first[optim][0], first[self.light["optim"]][0]))
                    yield Candidate(_free(chosen), sketch.step_seconds(passes, step, light), sketch.least_bytes(passes, step))

    def _resharded(self, checkpointing, of_passes: list[Sketch]) -> list[Sketch]:
        small = self.resharded[checkpointing].result()[0]
        small_gathered = self.chains[checkpointing, self.light["model.attention"]].result()[0]
        if not small:
            return []
        return [sketch.resharding(*told) for told in zip(of_passes, small[0], small_gathered[0])]


def _free(chosen: dict) -> dict:
    """A choice without the levers that are pinned."""
    return {lever: value for lever, value in chosen.items() if value is not None}


# --- in a worker ----------------------------------------------------------------------------------------


def sketch_chain(configs: list, precisions: list[str], capacity_bytes: int,
                 giving_back: bool = False) -> tuple[list[list[Sketch]], str]:
    """(sketches of configurations with growing batches, for each of the precisions; why there are no more, or '').

    None is made after the first whose passes take too much, whatever the optimizer. giving_back: they also stand for
    those that give their weights back.
    """
    made: list[list[Sketch]] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for cfg in configs:
                made.append(sketch.sketch(cfg, precisions, folder))
                seen = made[-1][0]
                if seen.pass_bytes - giving_back * seen.gathered_bytes > capacity_bytes:
                    break
    except (Refusal, Unknown) as error:
        return made, str(error)
    return made, ""
