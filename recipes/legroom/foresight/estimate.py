"""recipe=estimate: the record of a training that is not run. Its figures are predictions."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import transformers

from legroom import invocation
from legroom.config import Config
from legroom.errors import Refusal, UnknownOperation
from legroom.foresight import explain, not_followed, prediction, shared_simulation, tried_levers
from legroom.foresight.simulation import SimulatedStep
from legroom.foresight.speed import anatomy
from legroom.machine import host
from legroom.machine.worker_environment import SIMULATIONS
from legroom.records import step_file
from legroom.records.record import TIGHT, Record, shown_status

TIMELINE = "timeline.png"


def run(cfg: Config, outcome: Record, folder: Path, progress: Any, advise: bool = True) -> None:
    """Predict a step, and enter it into the record. If it does not fit, the status is oom and the figures are complete.

    progress: the worker's, for `enter(phase, text)`. advise: whether to try what would make it fit, which takes longer
    than the estimate itself.
    """
    transformers.logging.disable_progress_bar()
    progress.enter("load", "estimating")
    start = time.perf_counter()
    try:
        simulated, timeline = shared_simulation.simulate_step(cfg, str(folder))
    except UnknownOperation as error:
        raise Refusal(not_followed.reason(cfg, error)) from error
    prediction.fill(cfg, outcome, simulated)
    _write_step_file(cfg, outcome, simulated, timeline, folder)
    if outcome.error is not None and not advise:
        outcome.error.hint = None
    elif outcome.error is not None and SIMULATIONS in os.environ:  # in a sweep other jobs wait
        outcome.error.hint = (
            f"Estimated alone, it names levers that were tried; or search with {invocation.command('fit')}."
        )
    elif outcome.error is not None:
        progress.enter("load", "trying levers")
        outcome.error.hint = tried_levers.hint(cfg, outcome)
    elif shown_status(outcome) == TIGHT and advise and SIMULATIONS not in os.environ:
        progress.enter("load", "trying levers")
        outcome.warnings.append(tried_levers.hint(cfg, outcome))
    if cfg.estimate.explain:
        progress.enter("load", "trying levers")
        _explain(cfg, outcome, simulated, folder)
    if outcome.estimate is not None:
        outcome.estimate.seconds = time.perf_counter() - start


def _write_step_file(
    cfg: Config, outcome: Record, simulated: SimulatedStep, timeline: dict[str, Any], folder: Path
) -> None:
    """Enter the operations of the step into the record, and write what the estimate's page shows of it."""
    gpu = cfg.gpu if host.gpu(cfg) and not cfg.parallelism.cpu_offload else None
    rates = None if host.gpu(cfg) else prediction.cpu_rates(cfg)[0]
    operations = anatomy.predicted(simulated.tally, gpu, cfg.precision.name, cfg.parallelism.world_size, rates)
    outcome.operations = operations.summary
    try:
        step_file.write({"rank": 0, "timeline": timeline, "operations": operations.details}, folder)
    except OSError as error:
        outcome.warnings.append(f"the page lacks the timeline of the memory: {error.strerror}.")


def _explain(cfg: Config, outcome: Record, simulated: SimulatedStep, folder: Path) -> None:
    """Draw the picture, list the largest tensors, and try the levers."""
    title = f"{cfg.model.pretrained or cfg.model.name}: {' '.join(outcome.overrides)}"
    capacity = prediction.allocator_bytes(cfg) if host.gpu(cfg) else None
    try:
        explain.picture(simulated.trace, folder / TIMELINE, title, capacity)
    except ImportError:
        outcome.warnings.append("there is no picture: it needs matplotlib (pip install matplotlib).")
    if outcome.estimate is not None:
        outcome.estimate.largest = explain.largest(simulated.trace)
        outcome.estimate.levers = [
            lever.entry() for lever in explain.levers(cfg, prediction.device_used_bytes(outcome), str(folder))
        ]
