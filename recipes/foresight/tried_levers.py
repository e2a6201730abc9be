"""Hints that were tried: each change that is named against a step that does not fit was estimated first."""

from __future__ import annotations

from dataclasses import dataclass

from recipes.config import Config
from recipes.foresight.search import runner
from recipes.options import hooks
from recipes.options.hooks import Lever
from recipes.records.record import FITS, Estimate, Record, verdict_of
from recipes.units import MIB

NAMED = 3  # levers that alone are enough
GPUS = (2, 4, 8)
ADAPTERS = ("lora", "qlora")


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


def hint(cfg: Config, outcome: Record) -> str:
    """What makes a step fit that does not: single levers, else several together, else more GPUs; all were estimated.

    cfg: resolved. outcome: the record of its estimate, with an error.
    """
    phase = outcome.error.phase if outcome.error is not None else None
    smaller = _smaller_evaluation(cfg, outcome) if phase == "eval" else None
    if smaller is not None:
        return f"Tried: {smaller}. The result of the evaluation stays the same."
    alone = []
    for lever in _by_cost(hooks.memory_levers(cfg, phase)):
        trial = _try(outcome, lever.overrides.split())
        if trial is not None and trial.fits:
            alone.append(trial)
        if len(alone) == NAMED:
            break
    if alone:
        return f"Tried, the cheapest first, each fits alone: {'; '.join(map(str, alone))}."
    together = _together(cfg, outcome)
    if together is not None and together.fits:
        return f"Tried: no lever fits alone; together fit {together}."
    changes = together.changes if together is not None else ()
    adapter, more = _adapter(cfg, outcome, changes), _more_gpus(cfg, outcome, changes)
    nothing = f"nothing fits {cfg.gpu.device_name}, not even {' '.join(changes) or 'a lever'}."
    if adapter:
        return f"Tried: {adapter} With all weights trained {nothing} {more}"
    return f"Tried: {nothing} {more}{'' if ' do: ' in more else ' Choose a smaller model or a larger GPU.'}"


def _smaller_evaluation(cfg: Config, outcome: Record) -> _Trial | None:
    """The largest of eval.batch, eval.batch / 2, / 4 ... with which the evaluation fits."""
    batch = cfg.eval.batch // 2
    while batch:
        trial = _try(outcome, [f"eval.batch={batch}"])
        if trial is not None and trial.fits:
            return trial
        batch //= 2
    return None


def _by_cost(levers: list[Lever]) -> list[Lever]:
    return sorted((one for one in levers if one.cost is not None), key=lambda one: one.cost or 0)


def _together(cfg: Config, outcome: Record) -> _Trial | None:
    """Levers that together need least, the cheapest first, until they fit; a lever that saves nothing is left out."""
    best: _Trial | None = None
    least = outcome.memory.device_used_bytes or 0
    for lever in _by_cost(hooks.memory_levers(cfg)):
        trial = _try(outcome, _merged(best.changes if best is not None else (), lever.overrides.split()))
        used = trial and trial.record.memory.device_used_bytes
        if trial is None or used is None or used >= least:
            continue
        best, least = trial, used
        if trial.fits:
            break
    return best


def _adapter(cfg: Config, outcome: Record, changes: tuple[str, ...]) -> str:
    """An adapter with which it fits, with those of the tried levers that go with one; empty where none does."""
    if cfg.adapter.name != "none":
        return ""
    # In 16 bits the adapter's few weights are kept in 32: with bf16_pure they would save next to nothing.
    precision = ["precision=bf16"] if any(change.startswith("precision=") for change in changes) else []
    kept = [change for change in changes if change.partition("=")[0] in ("checkpointing", "loss", "kernels")]
    for adapter in ADAPTERS:
        trial = _try(outcome, [f"adapter={adapter}", *precision, *kept])
        if trial is not None and trial.fits:
            return f"{trial} fits. It trains small matrices beside the weights, which stay as they are."
    return ""


def _more_gpus(cfg: Config, outcome: Record, changes: tuple[str, ...]) -> str:
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
            trial = _try(outcome, [*over, *more])
            if trial is not None:
                estimated.add(more)
            if trial is not None and trial.fits:
                return f"{count} of these GPUs do: {trial}."
    if not estimated:
        return "More of these GPUs were not tried: parallelism=fsdp is refused with what is typed."
    return f"Nor do {GPUS[-1]} of these GPUs with parallelism=fsdp."


def _merged(changes: tuple[str, ...], more: list[str]) -> list[str]:
    """Overrides, of which a later one replaces an earlier one of its key."""
    return list({change.partition("=")[0]: change for change in [*changes, *more]}.values())


def _try(outcome: Record, changes: list[str]) -> _Trial | None:
    """The estimate with some overrides more; None where it is refused."""
    replaced = {change.partition("=")[0] for change in changes} | {"recipe"}
    kept = [override for override in outcome.overrides if override.partition("=")[0] not in replaced]
    record, _ = runner.predict([*kept, *changes])
    return None if record is None or record.estimate is None else _Trial(tuple(changes), record)
