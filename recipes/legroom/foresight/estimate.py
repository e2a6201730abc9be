"""recipe=estimate: the record of a training that is not run. Its figures are predictions."""

import contextlib
import copy
import math
import os
import time
from pathlib import Path
from typing import Any

import transformers

from legroom import invocation
from legroom.config import Config
from legroom.errors import Refusal, UnknownOperation, is_out_of_memory
from legroom.estimator import explain
from legroom.estimator.memory import allocator
from legroom.estimator.speed import anatomy
from legroom.estimator.speed.operations import Tally
from legroom.foresight import advice, first_verdict, not_followed, prediction, shared_simulation
from legroom.foresight.simulation import NOBODY, Listener, SimulatedStep
from legroom.machine.worker_environment import SIMULATIONS
from legroom.records import record_file, step_file
from legroom.records.messages import Estimated, Shown
from legroom.records.record import EVALUATION, STEP, TIGHT, Record, shown_status

TIMELINE = "timeline.png"
TRYING = "trying what would make it fit"
IN_SWEEP = f"Estimated alone, it names levers that were tried; or search with {invocation.command('fit')}."
ENDED = "it was ended while it tried levers: the figures are complete, and the advice is not."


def run(cfg: Config, outcome: Record, folder: Path, progress: Any, advise: bool = True) -> None:
    """Predict a step, and enter it into the record. If it does not fit, the status is oom and the figures are complete.

    progress: the worker's, for `enter` and `send`. advise: whether to try what would make it fit, which takes longer
    than the estimate itself.
    """
    transformers.logging.disable_progress_bar()
    progress.enter("load", "estimating")
    start = time.perf_counter()
    try:
        simulated, timeline = shared_simulation.simulate_step(cfg, str(folder), _listener(cfg, progress))
    except UnknownOperation as error:
        raise Refusal(not_followed.reason(cfg, error)) from error
    prediction.fill(cfg, outcome, simulated)
    _write_step_file(cfg, outcome, simulated, timeline, folder)
    if outcome.estimate is not None:
        outcome.estimate.seconds = time.perf_counter() - start
    in_sweep, needs_advice = SIMULATIONS in os.environ, outcome.error is not None or shown_status(outcome) == TIGHT
    of_step = outcome.estimate is None or outcome.estimate.decided_by in (None, STEP, EVALUATION)
    advise = advise and of_step  # what another phase lacks is mended by a key that its error names
    if outcome.error is not None and advise:
        outcome.error.hint = IN_SWEEP if in_sweep else advice.untried(cfg, outcome.error.phase)
    advises = needs_advice and advise and not in_sweep and cfg.estimate.hint_seconds > 0
    if not advises and not cfg.estimate.explain:
        return
    _leave_answer(outcome, folder)
    if not in_sweep:
        progress.send(Estimated(outcome))
    try:
        trials = advice.Trials(outcome)
        if advises:
            _advise(cfg, trials, progress)
        if cfg.estimate.explain:
            _explain(cfg, trials, simulated, folder, progress)
    except KeyboardInterrupt:  # ends the search, and not the answer
        outcome.warnings.append(ENDED)
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        outcome.warnings.append(f"this machine's memory ran out while levers were tried. {ENDED}")
    if outcome.estimate is not None:
        outcome.estimate.seconds = time.perf_counter() - start


def _listener(cfg: Config, progress: Any) -> Listener:
    """Shows what is simulated, and the first verdict; nothing in a sweep."""
    if SIMULATIONS in os.environ:
        return NOBODY

    def first(events: list[allocator.Request], tally: Tally | None) -> None:
        line = first_verdict.text(cfg, events, tally)
        if line:
            progress.send(Shown(line, of_one_run=True))

    return Listener(lambda text: progress.enter("load", f"estimating: {text}"), first)


def _leave_answer(outcome: Record, folder: Path) -> None:
    """Write the record, for the case that this process is ended while it tries what would make the step fit."""
    early = copy.deepcopy(outcome)
    early.warnings.append(ENDED)
    with contextlib.suppress(OSError):  # it is written once more at the end, which says so if that fails
        record_file.write(early, folder)


def _advise(cfg: Config, trials: advice.Trials, progress: Any) -> None:
    """Try what would make the step fit, and enter it into the record."""
    outcome, trials.seconds = trials.outcome, cfg.estimate.hint_seconds
    limit = f"for {trials.seconds:g} s at most (estimate.hint_seconds)"
    progress.send(Shown(f"{TRYING}, {limit}; Ctrl-C ends the search alone."))
    trials.at = lambda count, planned: progress.enter("load", f"{TRYING}: {count} of {planned}")
    trials.found = lambda text: progress.send(Shown(f"  {text}"))
    hint = advice.hint(cfg, outcome, trials)
    if outcome.error is not None:
        outcome.error.hint = hint
        if trials.fitting and outcome.estimate is not None:
            outcome.estimate.proposal = list(trials.fitting[0].changes)
    else:
        outcome.warnings.append(hint)


def _write_step_file(
    cfg: Config, outcome: Record, simulated: SimulatedStep, timeline: dict[str, Any], folder: Path
) -> None:
    """Enter the operations of the step into the record, and write what the estimate's page shows of it."""
    gpu = cfg.gpu if cfg.target.gpu and not cfg.parallelism.steps_on_host else None
    operations = anatomy.predicted(simulated.tally, gpu, cfg.precision.kind, cfg.parallelism.world_size)
    outcome.operations = operations.summary
    shown = {"rank": simulated.rank, "timeline": timeline, "operations": operations.details}
    outcome.warnings += step_file.try_writing(shown, folder)


def _explain(cfg: Config, trials: advice.Trials, simulated: SimulatedStep, folder: Path, progress: Any) -> None:
    """Draw the picture, list the largest tensors, and try the levers."""
    outcome = trials.outcome
    title = f"{cfg.model.pretrained or cfg.model.name}: {' '.join(outcome.overrides)}"
    capacity = prediction.allocator_bytes(cfg) if cfg.target.gpu else None
    explain.picture(simulated.trace, folder / TIMELINE, title, capacity)
    if outcome.estimate is not None:
        outcome.estimate.largest = explain.largest(simulated.trace)
        trials.seconds, trials.found = math.inf, lambda text: None
        trials.at = lambda count, planned: progress.enter("load", f"trying levers: {count} of {planned}")
        try:
            for row in advice.explained(cfg, trials):
                outcome.estimate.levers.append(row)
        finally:  # what saves most comes first, what is refused last
            outcome.estimate.levers.sort(key=lambda row: ("refused" in row, -row.get("saved_bytes", 0)))
