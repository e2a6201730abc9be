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
from legroom.options.hooks import Cost, Lever

GPUS = (2, 4, 8)
FREE = ("checkpointing", "loss", "batch", "accumulation")  # menus and sections that `fit` chooses
ATTENTION = "model.attention"
OFFLOAD = Lever("checkpointing=offload", Cost.HOST_COPIES)
IN_BACKWARD = f"{optim.IN_BACKWARD}=true"
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
        whole = self.cfg.parallelism.sharded or self.here == 1
        counts = [count for count in GPUS if count > self.here or (count == self.here and not whole)]
        even = [count for count in counts if self.effective % count == 0]
        changed, adapters = objective.changed_mathematics(self.cfg), objective.adapters(self.cfg)
        # Before more GPUs, for the time may end: most people have these, and fewer ranks take less time to simulate.
        alone = self._first(self.here, changed) or self._first(self.here, adapters)
        found = [self._of_counts(even, [()]), alone]
        if found[0] is None and (alone is None or self.levers[alone.changes][0].cost is Cost.OTHER_WEIGHTS):
            more = self._of_counts(even, changed)
            uneven = [count for count in counts if count not in even]
            found.append(more or self._of_counts(uneven, [(), *changed]))
        return [trial for trial in found if trial is not None]

    def _of_counts(self, counts: list[int], sets: list[tuple[Lever, ...]]) -> Trial | None:
        return next(filter(None, (self._first(count, sets) for count in counts)), None)

    def _first(self, count: int, sets: list[tuple[Lever, ...]]) -> Trial | None:
        """The best with the first of some sets of levers with which it fits so many GPUs."""
        for early in (True, False):  # which goes with few other levers
            alike = [levers for levers in sets if early is any(IN_BACKWARD in each.overrides for each in levers)]
            strongest = (self.may_fit(count, levers) for levers in reversed(alike))
            if next((answer for answer in strongest if answer is not None), False):
                break
        else:
            return None
        for levers in sets:
            trial = self._search(count, levers) if self.may_fit(count, levers) else None
            if trial is not None:
                self.levers[trial.changes] = levers
                return trial
        return None

    def may_fit(self, count: int, levers: tuple[Lever, ...]) -> bool | None:
        """Whether the smallest step with some levers can fit so many GPUs; None where it is refused."""
        if (count, levers) not in self._may_fit:
            self._may_fit[count, levers] = self._ask(count, levers)
        return self._may_fit[count, levers]

    def _ask(self, count: int, levers: tuple[Lever, ...]) -> bool | None:
        typed = _words(levers)
        strong = ("checkpointing=full", "optim=adamw_fused", "loss=chunked")
        alike = [lever for lever in hooks.memory_levers(self.cfg) if lever.cost is not None]
        tried = [change for lever in alike for change in lever.overrides.split()]
        also = [text for text in strong if text in tried and text not in typed]
        kept = [f"{key}={getattr(self.cfg, key).name}" for key in ("checkpointing", "loss")]
        small = {text.partition("=")[0]: text for text in (*kept, *also, *typed)}
        also_stepping = small | {optim.IN_BACKWARD: IN_BACKWARD}
        ways = [small] if self.cfg.train.max_grad_norm else [small, also_stepping]
        answers = []
        for way in ways:
            share = self._effective(count) // (count if count != self.here else self.cfg.parallelism.replicas or 1)
            batch = share if way.get(optim.IN_BACKWARD) == IN_BACKWARD else 1
            over = [] if count == self.here else space.mode_overrides("fsdp", count)
            line = (*self._typed(count, way.values()), f"{space.BATCH}={batch}", *over)
            if line not in self._shares:
                cfg, _, problems = space.compose_estimate(*line)
                self.refused |= dict.fromkeys(map(str, problems))
                fine = cfg is not None and not problems
                self._shares[line] = self.trials.submit(_least_share, cfg).result() if fine else None
            answers += [share <= 1 for share in [self._shares[line]] if share is not None]
        return any(answers) if answers else None

    def _effective(self, count: int) -> int:
        """The effective batch; a row more for each GPU that would have none."""
        return -(-self.effective // count) * count if count != self.here else self.effective

    def _typed(self, count: int, changes: Iterable[str]) -> list[str]:
        """What is typed, without what `fit` chooses, and some changes."""
        sections = {*FREE, *(["parallelism"] if count != self.here else [])}
        keys = {ATTENTION} if self.cfg.model.attention in ("auto", "sdpa", "eager") else set()
        keys |= {"optim"} if optim.is_adamw(self.cfg) else set()
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
        options = Options(top=1, gpus=count if count != self.here else None)
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
        return self.trials.note(Trial(best.outcome, "", self._changes(search.overrides_of(best.chosen), best.record)))

    def _simplest(self, levers: tuple[Lever, ...]) -> Trial | None:
        """The fewest levers beside some with which it fits, of those that leave the mathematics alone."""
        priced = [(lever.cost, lever) for lever in hooks.memory_levers(self.cfg) if lever.cost is not None]
        cheap = [lever for cost, lever in sorted(priced, key=lambda each: each[0]) if cost < Cost.HOST_COPIES]
        sets = [(*levers, *more) for count in range(4) for more in itertools.combinations(cheap, count)]
        lines = [line for line in map(_words, sets) if len({text.partition("=")[0] for text in line}) == len(line)]
        self.trials.plan(len(lines))
        trials = (self.trials(line) for line in lines if line)
        fitting = next((trial for trial in trials if trial.fits), None)
        return fitting and self.trials.note(fitting)

    def _changes(self, overrides: list[str], outcome: runner.Record) -> tuple[str, ...]:
        """What to type in place of what is typed, to get one of `fit`'s configurations."""
        typed, made, found = self.trials.outcome.overrides, config.from_dict(outcome.config), list[str]()
        for text in overrides:
            key, _, value = text.partition("=")
            differs = key.split(".")[0] != "batch" and space.typed_value(space.now(self.cfg, key)) != value
            found += [text] if text not in typed and differs else []
        held = {text.partition("=")[0] for text in found}
        for text in typed:  # keys of what was typed in another option's place
            key, _, value = text.partition("=")
            if "." in key and key.split(".")[0] in ("checkpointing", "loss") and key not in held:
                now = space.typed_value(space.now(made, key))
                found += [f"{key}={now}"] * (now not in (value, "null"))
        return tuple(found + self._batch(typed, made))

    def _batch(self, typed: list[str], made: Config) -> list[str]:
        size, steps, before = made.batch.per_device, made.accumulation.steps, self.cfg
        found = [f"{space.BATCH}={size}"] * (size != before.batch.per_device)
        if effective_batch(made) != self.effective and before.batch.effective:
            return [*found, f"batch.effective={effective_batch(made)}"]
        if before.batch.effective or steps == before.accumulation.steps:
            return found
        if any(text.startswith("accumulation.") for text in typed) or steps not in (1, 2, 4, 8, 16):
            return [*found, f"accumulation.steps={steps}"]
        return [*found, "accumulation=none" if steps == 1 else f"accumulation=x{steps}"]


def effective_batch(cfg: Config) -> int:
    """Rows of an optimizer step of all ranks."""
    return cfg.batch.per_device * cfg.accumulation.steps * (cfg.parallelism.replicas or 1)


def _words(levers: Iterable[Lever]) -> list[str]:
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
