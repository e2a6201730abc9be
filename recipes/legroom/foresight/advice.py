"""What to change where memory runs out: for a run that did, for an estimate, and for `estimate.explain`.

What counts first is written in `search/objective.py`, which `fit` goes by too. Rows and effective batch are kept.
`untried` only names levers; `hint` and `explained` estimate what they name. Imports no torch until something is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from legroom import config
from legroom.config import Config
from legroom.foresight.trials import TimeIsUp, Trial, Trials
from legroom.machine import host
from legroom.options import hooks
from legroom.options.batch import effective_batch
from legroom.options.hooks import Cost
from legroom.records.record import Record, verdict_of

if TYPE_CHECKING:
    from legroom.foresight.search.adviser import Adviser  # imports torch

EVAL = "eval"  # the phase of an evaluation
SAME_SCORES = "A smaller eval.batch leaves the result of the evaluation the same."
CHANGES = {
    Cost.HOST_COPIES: "the copies to the host take a time that differs by machine",
    Cost.LOW_PRECISION_PRODUCTS: "products are in 16 bits",
    Cost.LOW_PRECISION_STATES: "the optimizer's states are in 8 bits",
    Cost.NO_CLIPPING: "gradients are not clipped",
    Cost.LOW_PRECISION_WEIGHTS: "weights are in 16 bits",
    Cost.OTHER_WEIGHTS: "small matrices are trained beside the weights, which stay as they are",
}


def untried(cfg: Config, phase: str = "") -> str:
    """A sentence with the levers against memory that the configuration does not use yet.

    phase: where memory ran out. In the optimizer's step no activation is alive, so a lever that only makes activations
    smaller is not named; nor is it for an evaluation, whose batch comes first.
    """
    if phase == EVAL:  # it holds weights and optimizer states beside its batch, and keeps no activations
        levers = hooks.memory_levers(cfg, "step")
    else:
        levers = hooks.memory_levers(cfg, phase)
    by_cost = [(lever.cost, lever.overrides) for lever in levers if lever.cost is not None]
    by_cost.sort(key=lambda pair: pair[0])
    names = [overrides for _, overrides in by_cost]
    if phase == EVAL and cfg.eval.batch > 1:
        names.insert(0, f"eval.batch={cfg.eval.batch // 2}")
    if not names:
        return "No lever is left: choose a smaller model, a shorter data.seq_len, or parallelism=fsdp over more GPUs."
    return f"Try, the cheapest first: {', '.join(names)}."


# --- what makes a step fit ------------------------------------------------------------------------------


def hint(cfg: Config, outcome: Record, trials: Trials | None = None) -> str:
    """What makes a step fit that does not, or is tight. All that it names was estimated.

    cfg: resolved. outcome: the record of its estimate, which gets a warning where the search ends early: because time
    is up, or by Ctrl-C.
    """
    if trials is None:
        trials = Trials(outcome)
    try:
        return _whole_hint(cfg, outcome, trials)
    except (TimeIsUp, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt):
            why = "by Ctrl-C"
        else:
            why = f"after {trials.seconds:g} s (estimate.hint_seconds={5 * trials.seconds:g} searches longer)"
        outcome.warnings.append(f"the search for what would make it fit was ended {why}: {trials.progress} were tried.")
        if trials.fitting:
            return f"Tried so far, and fits: {'; or '.join(str(trial) for trial in trials.fitting)}."
        phase = outcome.error.phase if outcome.error is not None else ""
        return f"Nothing that was tried so far fits. {untried(cfg, phase)}"


def _whole_hint(cfg: Config, outcome: Record, trials: Trials) -> str:
    """`hint` with as much time as it takes: the evaluation's batch first, if that is what lacks room."""
    smaller = None
    if _lacks_for_evaluation(outcome):
        smaller = _smaller_evaluation(cfg, trials)
    if smaller is None:
        return _hint_for_step(cfg, trials)
    if smaller.fits:
        return f"Tried: {trials.note(smaller)}. {SAME_SCORES}"
    with trials.beside(smaller.changes):  # the step lacks room too
        return f"{_hint_for_step(host.configuration(smaller.record.config), trials)} {SAME_SCORES}"


def _hint_for_step(cfg: Config, trials: Trials) -> str:
    """What makes a step fit, in a sentence."""
    from legroom.foresight.search.adviser import GPUS, Adviser

    device = cfg.gpu.device_name
    adviser = Adviser(cfg, trials)
    fitting = adviser.found()
    if not fitting:
        nothing = f"Tried: nothing fits {device}, nor {GPUS[-1]} of them."
        if adviser.refused:  # may fit once what refuses it is not typed
            refused = " ".join(adviser.refused)
            return f"{nothing} Not tried, because it is refused: {refused} Or choose a smaller model or a larger GPU."
        return f"{nothing} Choose a smaller model or a larger GPU."
    best = fitting[0]
    takes_more_gpus = config.from_dict(best.record.config).parallelism.world_size != cfg.parallelism.world_size
    changes_mathematics = any(lever.changes_mathematics for lever in adviser.levers[best.changes])
    sentences = [_sentence(cfg, adviser, trial) for trial in fitting]
    if takes_more_gpus or changes_mathematics:
        sentences.insert(0, f"nothing that computes the same fits {device}.")
    return f"Tried: {' '.join(sentences)}"


def _sentence(cfg: Config, adviser: Adviser, trial: Trial) -> str:
    """A sentence about what fits: on how many GPUs, and what it changes."""
    changed = config.from_dict(trial.record.config)
    gpus = changed.parallelism.world_size
    fits = f"{trial} fits"
    if gpus != cfg.parallelism.world_size:
        fits = f"{gpus} of these GPUs do: {trial}"
    notes = []
    batch = effective_batch(changed)
    if batch != adviser.effective:
        notes.append(f"the effective batch is {batch}")
    costs = [lever.cost for lever in adviser.levers[trial.changes]]
    notes += [CHANGES[cost] for cost in costs if cost is not None and cost in CHANGES]
    if not notes:
        return f"{fits}, and computes the same."
    return f"{fits}; {', '.join(notes)}."


def _lacks_for_evaluation(outcome: Record) -> bool:
    """Whether the evaluation lacks room, or leaves less than is to stay free and less than the step does."""
    estimate = outcome.estimate
    if estimate is None or estimate.evaluation_margin_bytes is None:
        return False
    return estimate.evaluation_margin_bytes < (estimate.kept_bytes or 0)


def _smaller_evaluation(cfg: Config, trials: Trials) -> Trial | None:
    """The largest of eval.batch / 2, / 4 ... with which the evaluation lacks nothing, whatever the step does."""
    batch = cfg.eval.batch // 2
    trials.plan(batch.bit_length())
    while batch:
        trial = trials([f"eval.batch={batch}"])
        if trial.outcome is not None and not _lacks_for_evaluation(trial.record):
            return trial
        batch //= 2
    return None


# --- estimate.explain -----------------------------------------------------------------------------------


def explained(cfg: Config, trials: Trials) -> Iterator[dict[str, Any]]:
    """Each lever on its own, as the record has it: the figures with it, or why it is refused."""
    levers = hooks.memory_levers(cfg)
    trials.plan(len(levers))
    before = Trial(trials.outcome)
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
