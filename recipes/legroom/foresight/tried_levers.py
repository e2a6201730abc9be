"""Hints that were tried: each change that is named against a step that does not fit was estimated first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from legroom import config
from legroom.config import Config
from legroom.foresight.search import runner
from legroom.options import hooks, memory_hints
from legroom.options.hooks import Lever
from legroom.records.record import FITS, Estimate, Record, verdict_of
from legroom.units import MIB

NAMED = 3  # levers that alone are enough
GPUS = (2, 4, 8)
ADAPTERS = ("lora", "qlora")
SAVES = 0.01  # of what is needed: less is left out of a set of levers
MOST_TRIALS = 24  # for a set of levers; of a model with billions of parameters each may take 4 seconds


@dataclass(frozen=True)
class _Trial:
    """A change as overrides, and the record of its estimate."""

    changes: tuple[str, ...]
    record: Record

    @property
    def estimate(self) -> Estimate:
        assert self.record.estimate is not None, "an estimate for a GPU"
        return self.record.estimate

    @property
    def fits(self) -> bool:
        return verdict_of(self.estimate) == FITS

    def __str__(self) -> str:
        seconds = self.record.speed.step_seconds_median
        time = f", {seconds * 1000:,.0f} ms a step" if seconds else ""
        return f"{' '.join(self.changes)} ({self.estimate.margin_bytes / MIB:,.0f} MiB stay free{time})"


class TimeIsUp(Exception):
    """estimate.hint_seconds have passed."""


@dataclass
class Trials:
    """The estimates of a record's command line with some overrides more, each made once.

    seconds: how long new ones are begun. at(count, planned): called before each. found(text): called with what fits.
    """

    outcome: Record
    seconds: float = math.inf
    at: Callable[[int, int], None] = lambda count, planned: None
    found: Callable[[str], None] = lambda text: None
    planned: int = 0  # how many there may be, as far as the search has come
    made: dict[frozenset[str], _Trial | None] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def __call__(self, changes: list[str] | tuple[str, ...]) -> _Trial | None:
        """The estimate with some overrides more; None where it is refused. Raises TimeIsUp."""
        key = frozenset(changes)
        if key not in self.made:
            if time.monotonic() - self.began > self.seconds:
                raise TimeIsUp
            self.at(len(self.made) + 1, max(self.planned, len(self.made) + 1))
            trial = self.made[key] = _try(self.outcome, list(changes))
            if trial is not None and trial.fits:
                self.found(f"fits: {trial}")
        return self.made[key]

    def plan(self, count: int) -> None:
        """So many more may come."""
        self.planned = len(self.made) + count

    @property
    def progress(self) -> str:
        """How far the search has come."""
        return f"{len(self.made)} of {max(self.planned, len(self.made))}"

    @property
    def fitting(self) -> list[_Trial]:
        return [trial for trial in self.made.values() if trial is not None and trial.fits]


def hint(cfg: Config, outcome: Record, trials: Trials | None = None) -> str:
    """What makes a step fit that does not, or is tight: single levers, else several together, else more GPUs.

    All were estimated. cfg: resolved. outcome: the record of its estimate, which gets a warning where the search ends
    early: because time is up, or by Ctrl-C.
    """
    trials = trials or Trials(outcome)
    try:
        return _hint(cfg, outcome, trials)
    except (TimeIsUp, KeyboardInterrupt) as error:
        why = (
            "by Ctrl-C"
            if isinstance(error, KeyboardInterrupt)
            else f"after {trials.seconds:g} s (estimate.hint_seconds)"
        )
        outcome.warnings.append(f"the search for what would make it fit was ended {why}: {trials.progress} were tried.")
        if trials.fitting:
            return f"Tried so far, and fits: {'; '.join(map(str, trials.fitting[-NAMED:]))}."
        phase = outcome.error.phase if outcome.error is not None else ""
        return f"Nothing that was tried so far fits. {memory_hints.memory_hint(cfg, phase)}"


def _hint(cfg: Config, outcome: Record, trials: Trials) -> str:
    phase = outcome.error.phase if outcome.error is not None else None
    smaller = _smaller_evaluation(cfg, trials) if _is_evaluation(outcome) else None
    if smaller is not None:
        return f"Tried: {smaller}. The result of the evaluation stays the same."
    alone, levers = [], _by_cost(hooks.memory_levers(cfg, phase))
    trials.plan(len(levers))
    for lever in levers:
        trial = trials(lever.overrides.split())
        if trial is not None and trial.fits:
            alone.append(trial)
        if len(alone) == NAMED:
            break
    if alone:
        return f"Tried, the cheapest first, each fits alone: {'; '.join(map(str, alone))}."
    trials.plan(MOST_TRIALS)
    together = _together(cfg, trials)
    if together is not None and together.fits:
        return f"Tried: no lever fits alone; together fit {together}."
    changes = together.changes if together is not None else ()
    trials.plan(len(ADAPTERS) + 3 * len(GPUS))
    adapter, more = _adapter(cfg, trials, changes), _more_gpus(cfg, trials, changes)
    nothing = f"nothing fits {cfg.gpu.device_name}, not even {' '.join(changes) or 'a lever'}."
    if adapter:
        return f"Tried: {adapter} With all weights trained {nothing} {more}"
    return f"Tried: {nothing} {more}{'' if ' do: ' in more else ' Choose a smaller model or a larger GPU.'}"


def _is_evaluation(outcome: Record) -> bool:
    """Whether it is the evaluation that does not fit, or that is tight."""
    if outcome.error is not None:
        return outcome.error.phase == "eval"
    evaluation = outcome.estimate.evaluation_reserved_bytes if outcome.estimate is not None else None
    return (evaluation or 0) > (outcome.memory.peak_reserved_bytes or 0)


def _smaller_evaluation(cfg: Config, trials: Trials) -> _Trial | None:
    """The largest of eval.batch, eval.batch / 2, / 4 ... with which the evaluation fits."""
    batch = cfg.eval.batch // 2
    trials.plan(batch.bit_length())
    while batch:
        trial = trials([f"eval.batch={batch}"])
        if trial is not None and trial.fits:
            return trial
        batch //= 2
    return None


def _by_cost(levers: list[Lever]) -> list[Lever]:
    return sorted((one for one in levers if one.cost is not None), key=lambda one: one.cost or 0)


def _together(cfg: Config, trials: Trials) -> _Trial | None:
    """Levers that together fit, or need least: in each round the cheapest that lowers the peak, which has moved then.

    In the end those without which it fits as well are taken out, the costliest first.
    """
    best, record, kept = None, trials.outcome, []
    most = len(trials.made) + MOST_TRIALS
    while best is None or not best.fits:
        found = _cheapest(cfg, record, kept, trials, most)
        if found is None:
            break
        lever, best = found
        record, cfg, kept = best.record, config.from_dict(best.record.config), [*kept, lever]
    if best is not None and best.fits:
        for lever in reversed(_by_cost(kept)):
            fewer = [each for each in kept if each is not lever]
            trial = trials(_merged(fewer)) if fewer else None
            if trial is not None and trial.fits:
                best, kept = trial, fewer
    return best


def _cheapest(cfg: Config, record: Record, kept: list[Lever], trials: Trials, most: int) -> tuple[Lever, _Trial] | None:
    """The cheapest lever that lowers the memory of a configuration and its record, beside those that are kept."""
    least = record.memory.device_used_bytes or 0
    phase = None if record.error is None else record.error.phase
    for lever in _by_cost(hooks.memory_levers(cfg, phase)):
        if len(trials.made) >= most:
            return None
        trial = trials(_merged([*kept, lever]))
        used = trial and trial.record.memory.device_used_bytes
        if trial is not None and used is not None and (used < least * (1 - SAVES) or (trial.fits and used < least)):
            return lever, trial
    return None


def _adapter(cfg: Config, trials: Trials, changes: tuple[str, ...]) -> str:
    """An adapter with which it fits, with those of the tried levers that go with one; empty where none does."""
    if cfg.adapter.name != "none":
        return ""
    # In 16 bits the adapter's few weights are kept in 32: with bf16_pure they would save next to nothing.
    precision = ["precision=bf16"] if any(change.startswith("precision=") for change in changes) else []
    kept = [change for change in changes if change.partition("=")[0] in ("checkpointing", "loss", "kernels")]
    for adapter in ADAPTERS:
        trial = trials([f"adapter={adapter}", *precision, *kept])
        if trial is not None and trial.fits:
            return f"{trial} fits. It trains small matrices beside the weights, which stay as they are."
    return ""


def _more_gpus(cfg: Config, trials: Trials, changes: tuple[str, ...]) -> str:
    """How many of these GPUs can do it with FSDP, without levers or with those that were tried together."""
    with_fsdp = tuple(change for change in changes if not change.startswith("optim="))  # FSDP refuses some of these
    ways = list(dict.fromkeys(((), changes, with_fsdp)))
    another = (*with_fsdp, "optim=adamw_fused")  # where FSDP refuses the optimizer
    estimated = set()
    for count in GPUS:
        if count <= cfg.parallelism.world_size:
            continue
        over = ["parallelism=fsdp", f"parallelism.num_processes={count}"]
        for more in [*ways, *([another] if not estimated & {*ways} else [])]:
            trial = trials([*over, *more])
            if trial is not None:
                estimated.add(more)
            if trial is not None and trial.fits:
                return f"{count} of these GPUs do: {trial}."
    if not estimated:
        return "More of these GPUs were not tried: parallelism=fsdp is refused with what is typed."
    return f"Nor do {GPUS[-1]} of these GPUs with parallelism=fsdp."


def _merged(levers: list[Lever]) -> list[str]:
    """The overrides of levers, of which a later one replaces an earlier one of its key."""
    changes = [change for lever in levers for change in lever.overrides.split()]
    return list({change.partition("=")[0]: change for change in changes}.values())


def _try(outcome: Record, changes: list[str]) -> _Trial | None:
    """The estimate with some overrides more; None where it is refused."""
    replaced = {change.partition("=")[0] for change in changes} | {"recipe"}
    kept = [override for override in outcome.overrides if override.partition("=")[0] not in replaced]
    record, _ = runner.predict([*kept, *changes])
    return None if record is None or record.estimate is None else _Trial(tuple(changes), record)
