"""What makes a step fit that does not: `fit`'s own search, with as little changed as possible (`objective`).

What is typed stays, but for the levers that leave the mathematics alone: `fit` chooses them. Before a search one
extrapolation of its smallest configuration tells whether it can find anything.
"""

import itertools
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from legroom import config
from legroom.config import Config
from legroom.errors import Refusal, UnknownOperation
from legroom.foresight import prediction
from legroom.foresight.search import extrapolation, objective, plan, runner, space
from legroom.foresight.search.request import Options
from legroom.foresight.trials import Trial, Trials, with_changes
from legroom.levers.optim import rules as optim
from legroom.options import hooks
from legroom.options.batch import effective_batch
from legroom.options.hooks import Cost, Lever

GPUS = (2, 4, 8)
FREE: tuple[str, ...] = ("checkpointing", "loss", "batch", "accumulation")  # menus and sections that `fit` chooses
ATTENTION = "model.attention"
OFFLOAD = Lever("checkpointing=offload", Cost.HOST_COPIES)
IN_BACKWARD = f"{optim.IN_BACKWARD}=true"
STRONGEST = ("checkpointing=full", "optim=adamw_fused", "loss=chunked")  # of the levers that compute the same
SEARCHES = 30  # estimates and extrapolations of one search, about


@dataclass
class Adviser:
    """A search for what makes a configuration fit. cfg: resolved. refused: why something was not tried."""

    cfg: Config
    trials: Trials
    refused: dict[str, None] = field(default_factory=dict)
    levers: dict[tuple[str, ...], Sequence[Lever]] = field(default_factory=dict)  # changes -> what they change

    def __post_init__(self) -> None:
        self.here = self.cfg.parallelism.world_size
        self.effective = effective_batch(self.cfg)
        self._may_fit: dict[tuple[int, tuple[Lever, ...]], bool | None] = {}
        self._shares: dict[tuple[str, ...], float | None] = {}  # a command line -> its `_least_share`

    def found(self) -> list[Trial]:
        """What fits, in the order of the objective: none is beaten by one before it in everything."""
        best = self._first(self.here, [(), (OFFLOAD,)])
        if best is not None:
            return [best]
        counts = [count for count in GPUS if count > self.here]
        if self.here in GPUS and not self.cfg.parallelism.sharded:
            counts.insert(0, self.here)  # as many GPUs, which share the weights out
        even = [count for count in counts if self.effective % count == 0]
        changed = objective.changed_mathematics(self.cfg)
        # Before more GPUs, for the time may end: most people have these, and fewer ranks take less time to simulate.
        alone = self._first(self.here, changed)
        if alone is None:
            alone = self._first(self.here, objective.adapters(self.cfg))
        unchanged = self._first_of_counts(even, [()])
        fitting = [unchanged, alone]
        only_adapters = alone is None or self.levers[alone.changes][0].cost is Cost.OTHER_WEIGHTS
        if unchanged is None and only_adapters:
            more = self._first_of_counts(even, changed)
            if more is None:
                uneven = [count for count in counts if count not in even]
                more = self._first_of_counts(uneven, [(), *changed])
            fitting.append(more)
        return [trial for trial in fitting if trial is not None]

    def _first_of_counts(self, counts: list[int], sets: list[tuple[Lever, ...]]) -> Trial | None:
        """`_first` with the fewest GPUs with which something fits."""
        for count in counts:
            trial = self._first(count, sets)
            if trial is not None:
                return trial
        return None

    def _first(self, count: int, sets: list[tuple[Lever, ...]]) -> Trial | None:
        """The best with the first of some sets of levers with which it fits so many GPUs."""
        # Steps in the backward pass go with few other levers, so that neither kind is the stronger one.
        in_backward = [levers for levers in sets if _steps_in_backward(levers)]
        after_backward = [levers for levers in sets if not _steps_in_backward(levers)]
        if not self._strongest_may_fit(count, in_backward) and not self._strongest_may_fit(count, after_backward):
            return None
        for levers in sets:
            if not self.may_fit(count, levers):
                continue
            trial = self._search(count, levers)
            if trial is not None:
                self.levers[trial.changes] = levers
                return trial
        return None

    def _strongest_may_fit(self, count: int, sets: list[tuple[Lever, ...]]) -> bool:
        """Whether the last of some sets of levers that is not refused may fit: if it cannot, none can."""
        for levers in reversed(sets):
            answer = self.may_fit(count, levers)
            if answer is not None:
                return answer
        return False

    def may_fit(self, count: int, levers: tuple[Lever, ...]) -> bool | None:
        """Whether the smallest step with some levers can fit so many GPUs; None where it is refused."""
        if (count, levers) not in self._may_fit:
            self._may_fit[count, levers] = self._ask(count, levers)
        return self._may_fit[count, levers]

    def _ask(self, count: int, levers: tuple[Lever, ...]) -> bool | None:
        typed = _words(levers)
        available = _words(lever for lever in hooks.memory_levers(self.cfg) if lever.cost is not None)
        strongest = [text for text in STRONGEST if text in available and text not in typed]
        kept = [f"{key}={getattr(self.cfg, key).name}" for key in ("checkpointing", "loss")]
        smallest = {text.partition("=")[0]: text for text in (*kept, *strongest, *typed)}
        ways = [smallest]
        if not self.cfg.train.max_grad_norm:  # clipping needs all gradients at once
            ways.append(smallest | {optim.IN_BACKWARD: IN_BACKWARD})
        shares = [self._share_of(count, way) for way in ways]
        known = [share for share in shares if share is not None]
        if not known:
            return None
        return min(known) <= 1

    def _share_of(self, count: int, overrides: dict[str, str]) -> float | None:
        """The least share of the memory that a step with some overrides needs, on so many GPUs; None: refused.

        overrides: by their keys.
        """
        batch = 1
        if overrides.get(optim.IN_BACKWARD) == IN_BACKWARD:  # nothing is accumulated: a rank has its whole share
            ranks = count
            if count == self.here:
                ranks = self.cfg.parallelism.replicas or 1
            batch = self._effective(count) // ranks
        line = (*self._typed(count, overrides.values()), f"{space.BATCH}={batch}")
        if count != self.here:
            line += tuple(space.mode_overrides("fsdp", count))
        if line not in self._shares:
            cfg, _, problems = space.compose_estimate(*line)
            self.refused |= dict.fromkeys(str(problem) for problem in problems)
            if cfg is None or problems:
                self._shares[line] = None
            else:
                self._shares[line] = self.trials.submit(_least_share, cfg).result()
        return self._shares[line]

    def _effective(self, count: int) -> int:
        """The effective batch; a row more for each GPU that would have none."""
        if count == self.here:
            return self.effective
        return -(-self.effective // count) * count

    def _typed(self, count: int, changes: Iterable[str]) -> list[str]:
        """What is typed, without what `fit` chooses, and some changes."""
        sections: set[str] = set(FREE)
        if count != self.here:
            sections.add("parallelism")
        keys: set[str] = set()
        if self.cfg.model.attention in ("auto", "sdpa", "eager"):
            keys.add(ATTENTION)
        if optim.is_adamw(self.cfg):
            keys.add("optim")
        kept = []
        for text in self.trials.outcome.overrides:
            key = text.lstrip("+~").partition("=")[0]
            if key.partition(".")[0] not in sections and key not in keys:
                kept.append(text)
        return [*with_changes(kept, list(changes)), f"batch.effective={self._effective(count)}"]

    def _search(self, count: int, levers: tuple[Lever, ...]) -> Trial | None:
        """The best that `fit` finds with some levers on so many GPUs."""
        if count == self.here and self.cfg.parallelism.steps_on_host:  # no speed is known that `fit` could compare
            return self._simplest(levers)
        options = Options(top=1)
        if count != self.here:
            options = Options(top=1, gpus=count)
        search, problems = plan.plan(self._typed(count, _words(levers)), options)
        if search is None:
            self.refused |= dict.fromkeys(map(str, problems))
            return None
        if self.here == 1 and "parallelism" in search.values:  # each GPU of ddp holds what one alone does not
            search.values["parallelism"] = [mode for mode in search.values["parallelism"] if mode != "ddp"]
        self.trials.plan(SEARCHES)
        result = runner.best(search, self.trials)
        if not result.fits:
            return None
        best = result.rows[0]
        changes = self._changes(search.overrides_of(best.chosen), best.record)
        return self.trials.note(Trial(best.outcome, "", changes))

    def _simplest(self, levers: tuple[Lever, ...]) -> Trial | None:
        """The fewest levers beside some with which it fits, of those that leave the mathematics alone."""
        priced = [(lever.cost, lever) for lever in hooks.memory_levers(self.cfg) if lever.cost is not None]
        priced.sort(key=lambda pair: pair[0])
        cheap = [lever for cost, lever in priced if cost < Cost.HOST_COPIES]
        lines = []
        for count in range(4):
            for more in itertools.combinations(cheap, count):
                line = _words((*levers, *more))
                keys = {text.partition("=")[0] for text in line}
                if len(keys) == len(line):  # no key twice
                    lines.append(line)
        self.trials.plan(len(lines))
        for line in lines:
            if line:
                trial = self.trials(line)
                if trial.fits:
                    return self.trials.note(trial)
        return None

    def _changes(self, overrides: list[str], outcome: runner.Record) -> tuple[str, ...]:
        """What to type in place of what is typed, to get one of `fit`'s configurations."""
        typed = self.trials.outcome.overrides
        fitting = config.from_dict(outcome.config)
        changes = []
        for text in overrides:
            key, _, value = text.partition("=")
            section = key.split(".")[0]
            if section != "batch" and text not in typed and space.typed_value(space.now(self.cfg, key)) != value:
                changes.append(text)
        changed_keys = {text.partition("=")[0] for text in changes}
        for text in typed:  # keys of what was typed in another option's place
            key, _, value = text.partition("=")
            if "." in key and key.split(".")[0] in ("checkpointing", "loss") and key not in changed_keys:
                now = space.typed_value(space.now(fitting, key))
                if now not in (value, "null"):
                    changes.append(f"{key}={now}")
        return tuple(changes + self._batch_changes(typed, fitting))

    def _batch_changes(self, typed: list[str], fitting: Config) -> list[str]:
        """What to type for the batch and the accumulation of a configuration."""
        steps = fitting.accumulation.steps
        changes = []
        if fitting.batch.per_device != self.cfg.batch.per_device:
            changes.append(f"{space.BATCH}={fitting.batch.per_device}")
        if self.cfg.batch.effective:  # the accumulation follows from it
            if effective_batch(fitting) != self.effective:
                changes.append(f"batch.effective={effective_batch(fitting)}")
        elif steps != self.cfg.accumulation.steps:
            is_typed_as_number = any(text.startswith("accumulation.") for text in typed)
            if is_typed_as_number or steps not in (1, 2, 4, 8, 16):
                changes.append(f"accumulation.steps={steps}")
            elif steps == 1:
                changes.append("accumulation=none")
            else:
                changes.append(f"accumulation=x{steps}")
        return changes


def _steps_in_backward(levers: Iterable[Lever]) -> bool:
    return any(IN_BACKWARD in lever.overrides for lever in levers)


def _words(levers: Iterable[Lever]) -> list[str]:
    """The overrides of some levers, one by one."""
    return [text for lever in levers for text in lever.overrides.split()]


def _least_share(cfg: Config) -> float:
    """At least so much of the memory that may be used is needed; infinite where a configuration is refused."""
    usable = prediction.allocator_bytes(cfg) / (1 + (cfg.estimate.margin or 0.0))
    gathered = extrapolation.without_resharding(cfg)
    try:
        with tempfile.TemporaryDirectory() as folder:
            (made,) = extrapolation.extrapolate(gathered, [cfg.precision.kind], folder)
    except (Refusal, UnknownOperation):
        return float("inf")
    if gathered is not cfg:
        made = replace(made, pass_bytes=made.pass_bytes - made.gathered_bytes)
    return extrapolation.least_bytes(made, made) / usable
