"""What to change where memory runs out: for a run that did, for an estimate, and for `estimate.explain`.

One order everywhere: what leaves the mathematics alone first, then the fewest GPUs, the fastest, the simplest. No lever
changes rows or effective batch. `untried` only names levers; `hint` and `explained` estimate what they name. Imports no
torch until something is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from legroom import config
from legroom.config import Config
from legroom.foresight.trials import TimeIsUp, Trial, Trials, with_changes
from legroom.options import hooks
from legroom.options.hooks import Cost, Lever
from legroom.records.record import Record, verdict_of

GPUS = (2, 4, 8)
ADAPTERS = ("lora", "qlora")
SAVES = 0.01  # of what is needed: a lever that saves less is left out of a set
MOST_TRIALS = 24  # for a set of levers; of a model with billions of parameters each may take 4 seconds
HOPELESS = 1.25  # of the GPU's memory: where all levers together need more, none is tried alone
NAMED = 3  # levers that alone are enough


def untried(cfg: Config, phase: str = "") -> str:
    """A sentence with the levers against memory that the configuration does not use yet.

    phase: where memory ran out. In the optimizer's step no activation is alive, so a lever that only makes activations
    smaller is not named.
    """
    levers = _by_cost(hooks.memory_levers(cfg, phase))
    if not levers:
        return "No lever is left: choose a smaller model, a shorter data.seq_len, or parallelism=fsdp over more GPUs."
    return "Try, the cheapest first: " + ", ".join(lever.overrides for lever in levers) + "."


def _by_cost(levers: list[Lever]) -> list[Lever]:
    return sorted((one for one in levers if one.cost is not None), key=lambda one: one.cost or Cost.NO_SPEED)


# --- what makes a step fit ------------------------------------------------------------------------------


def hint(cfg: Config, outcome: Record, trials: Trials | None = None) -> str:
    """What makes a step fit that does not, or is tight. All that it names was estimated.

    cfg: resolved. outcome: the record of its estimate, which gets a warning where the search ends early: because time
    is up, or by Ctrl-C.
    """
    trials = trials or Trials(outcome)
    try:
        return _hint(cfg, outcome, trials)
    except (TimeIsUp, KeyboardInterrupt) as error:
        by_time = f"after {trials.seconds:g} s (estimate.hint_seconds)"
        why = "by Ctrl-C" if isinstance(error, KeyboardInterrupt) else by_time
        outcome.warnings.append(f"the search for what would make it fit was ended {why}: {trials.progress} were tried.")
        if trials.fitting:
            return f"Tried so far, and fits: {trials.fitting[0]}."
        return f"Nothing that was tried so far fits. {untried(cfg, outcome.error.phase if outcome.error else '')}"


def _hint(cfg: Config, outcome: Record, trials: Trials) -> str:
    smaller = _smaller_evaluation(cfg, trials) if _is_evaluation(outcome) else None
    if smaller is not None:
        return f"Tried: {smaller}. The result of the evaluation stays the same."
    trials.plan(1)
    together = trials(_strongest(cfg, outcome))
    if together.outcome is None or together.used_bytes <= HOPELESS * cfg.gpu.memory_bytes:
        alone = _alone(_by_cost(hooks.memory_levers(cfg, outcome.error and outcome.error.phase)), trials)
        if alone:
            return f"Tried, each fits alone: {'; '.join(map(str, alone))}."
        trials.plan(MOST_TRIALS)
        together = _together(cfg, trials)
    if together.fits:
        return f"Tried: {together} fits{', and no lever alone does' * (len(together.changes) > 1)}."
    trials.plan(len(ADAPTERS) + 3 * len(GPUS))
    adapter, more = _adapter(cfg, trials, together.changes), _more_gpus(cfg, trials, together.changes)
    nothing = f"nothing fits {cfg.gpu.device_name}, not even {' '.join(together.changes) or 'a lever'}."
    if adapter:
        return f"Tried: {adapter} With all weights trained {nothing} {more}"
    none = more.startswith(("Nor", "More"))
    return f"Tried: {nothing} {more}{' Choose a smaller model or a larger GPU.' * none}"


def _strongest(cfg: Config, outcome: Record) -> list[str]:
    """Levers that go together, of each key the costliest: what needs nearly the least. Found without estimates."""
    from legroom.foresight.search import space

    changes: dict[str, str] = {}
    for lever in reversed(_by_cost(hooks.memory_levers(cfg))):
        more = {change.partition("=")[0]: change for change in lever.overrides.split()}
        if lever.cost is Cost.OTHER_WEIGHTS or changes.keys() & more.keys():
            continue
        if not space.compose_estimate(*with_changes(outcome, [*changes.values(), *more.values()]))[2]:
            changes |= more
    return list(changes.values())


def _is_evaluation(outcome: Record) -> bool:
    """Whether it is the evaluation that does not fit, or that is tight."""
    if outcome.error is not None:
        return outcome.error.phase == "eval"
    evaluation = outcome.estimate.evaluation_reserved_bytes if outcome.estimate is not None else None
    return (evaluation or 0) > (outcome.memory.peak_reserved_bytes or 0)


def _smaller_evaluation(cfg: Config, trials: Trials) -> Trial | None:
    """The largest of eval.batch, eval.batch / 2, / 4 ... with which the evaluation fits."""
    batch = cfg.eval.batch // 2
    trials.plan(batch.bit_length())
    while batch:
        trial = trials([f"eval.batch={batch}"])
        if trial.fits:
            return trial
        batch //= 2
    return None


def _alone(levers: list[Lever], trials: Trials) -> list[Trial]:
    """The first levers with which it fits, of each key the fastest; with the same mathematics first."""
    trials.plan(len(levers))
    found: dict[str, tuple[bool, Trial]] = {}
    for lever in levers:
        trial, key = trials(lever.overrides.split()), lever.overrides.partition("=")[0]
        if trial.fits and (key not in found or trial.rank < found[key][1].rank):
            found[key] = lever.changes_mathematics, trial
        if len(found) == NAMED:
            break
    return [trial for _, trial in sorted(found.values(), key=lambda each: (each[0], each[1].rank))]


def _together(cfg: Config, trials: Trials) -> Trial:
    """Levers that together fit, or need least: in each round the cheapest that lowers the peak, which has moved then.

    In the end those without which it fits as well are taken out, the costliest first.
    """
    best, kept, most = Trial((), trials.outcome), [], len(trials.made) + MOST_TRIALS
    while not best.fits:
        found = _cheapest(cfg, best, kept, trials, most)
        if found is None:
            return best
        kept, best = [*kept, found[0]], found[1]
        cfg = config.from_dict(best.record.config)
    for lever in reversed(_by_cost(kept)):
        fewer = [each for each in kept if each is not lever]
        trial = trials(_merged(fewer)) if fewer else None
        if trial is not None and trial.fits:
            best, kept = trial, fewer
    return best


def _cheapest(cfg: Config, best: Trial, kept: list[Lever], trials: Trials, most: int) -> tuple[Lever, Trial] | None:
    """The cheapest lever that lowers the memory of a configuration and its trial, beside those that are kept."""
    least, error = best.used_bytes, best.record.error
    for lever in _by_cost(hooks.memory_levers(cfg, error and error.phase)):
        if len(trials.made) >= most:
            return None
        trial = trials(_merged([*kept, lever]))
        if trial.used_bytes < least * (1 - SAVES) or (trial.fits and trial.used_bytes < least):
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
        if trial.fits:
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
            estimated |= {more} if trial.outcome is not None else set()
            if trial.fits:
                batch = _effective_batch(config.from_dict(trial.record.config))
                grows = f", with an effective batch of {batch}" if batch != _effective_batch(cfg) else ""
                return f"{count} of these GPUs do{grows}: {trial}."
    if not estimated:
        return "More of these GPUs were not tried: parallelism=fsdp is refused with what is typed."
    return f"Nor do {GPUS[-1]} of these GPUs with parallelism=fsdp."


def _effective_batch(cfg: Config) -> int:
    return cfg.batch.per_device * cfg.accumulation.steps * (cfg.parallelism.replicas or 1)


def _merged(levers: list[Lever]) -> list[str]:
    """The overrides of levers, of which a later one replaces an earlier one of its key."""
    changes = [change for lever in levers for change in lever.overrides.split()]
    return list({change.partition("=")[0]: change for change in changes}.values())


# --- estimate.explain -----------------------------------------------------------------------------------


def explained(cfg: Config, trials: Trials) -> Iterator[dict[str, Any]]:
    """Each lever on its own, as the record has it: the figures with it, or why it is refused."""
    levers = hooks.memory_levers(cfg)
    trials.plan(len(levers))
    before = Trial((), trials.outcome)
    for lever in levers:
        trial = trials(lever.overrides.split())
        if trial.outcome is None:
            yield {"words": lever.overrides, "refused": trial.refused}
            continue
        yield {
            "words": lever.overrides,
            "device_used_bytes": trial.used_bytes,
            "saved_bytes": before.used_bytes - trial.used_bytes,  # negative: it takes more
            "step_seconds": trial.record.speed.step_seconds_median,
            "verdict": verdict_of(trial.estimate),
        }
