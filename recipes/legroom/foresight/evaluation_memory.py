"""The memory of an evaluation, which decides whether a job fits where its batches need more than a training step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from legroom import units
from legroom.config import Config
from legroom.data import data_loader
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.op_trace import OpTrace
from legroom.estimator.memory import allocator
from legroom.estimator.memory.allocator import Demand
from legroom.estimator.memory.settings import UNLIMITED, Settings
from legroom.estimator.speed.operations import Tally
from legroom.foresight import run_schedule, uneven_lengths
from legroom.records.record import DOES_NOT_FIT, EVALUATION, TIGHT, Error, Record
from legroom.training import accelerate_loop, evaluate
from legroom.training.setup import Training

LESS = "Make eval.batch smaller, or leave the evaluation out with eval.enabled=false."
BATCHES = 2  # a step of two micro-batches, which also adds to gradients; an evaluation of two batches


@dataclass(frozen=True)
class EvaluationRequests:
    """Requests to the allocator. events: of two steps and of an evaluation behind them, which starts at index begin.

    tally: the operations of that evaluation, whose batches are of so much work, (3,) (`run_schedule`).
    """

    events: list[allocator.Request]
    begin: int
    tally: Tally
    work: numpy.ndarray

    def needed_alone(self, settings: Settings) -> int:
        """The bytes that the evaluation reserves, on a GPU without limit, once what the steps cached is given back."""
        gpu, held = allocator.Allocator(UNLIMITED, settings), dict[int, allocator.Block]()
        for event in self.events[: self.begin]:
            allocator.request(gpu, held, *event)
        gpu.empty_cache()
        gpu.peak_reserved = gpu.reserved
        for event in self.events[self.begin :]:
            allocator.request(gpu, held, *event)
        return gpu.peak_reserved


def requests(
    cfg: Config, training: Training, fake: FakeDevice, optimizer: torch.optim.Optimizer
) -> EvaluationRequests | None:
    """The requests to the allocator of two steps on the longest rows and of an evaluation of the longest behind them.

    training: after its first steps. The evaluation is that of a training, on two batches. None where there is none.
    """
    if training.data.eval is None or not cfg.eval.enabled:
        return None
    loop: Any = training.loop  # of the raw recipe
    data = training.data
    longest = data_loader.longest(data, data.eval, BATCHES * cfg.eval.batch * data.ranks)
    loader = data_loader.batch_loader(data, longest, training.args, cfg.eval.batch, shuffle=False)
    batches = next(accelerate_loop.chunks(data_loader.largest_step(data, training.args), BATCHES))
    trace = OpTrace(fake, loop.bare_model, optimizer)
    ends = [uneven_lengths.step(loop, trace, batches)]
    with trace, evaluate.evaluating(cfg, loop) as forward:
        figures = evaluate.totals(forward, loader, data.task, loop.accelerator.device)
    del figures
    ends.append(len(trace.log.events))
    steps = trace.allocator_events_of(ends, [0, 0])
    events = trace.allocator_events_of(ends, [0, 0, 1])
    work = run_schedule.work_of_rows(data, longest, cfg.eval.batch)
    return EvaluationRequests(events, len(steps), trace.step_tally(len(trace.passes)), work)


def judge(
    cfg: Config,
    outcome: Record,
    capacity_bytes: int,
    demand_within: Callable[[int], Demand],
    needed_alone: Callable[[], int] = lambda: 0,
) -> None:
    """Enter into a filled record what the evaluation needs. The verdict changes where it needs more than the step.

    Cached memory of the steps is given back to make room, so the evaluation counts where it finds none after that.
    demand_within: a capacity -> what the requests ask of the allocator there. needed_alone: what the evaluation
    reserves without what the steps have cached; asked for a GPU that the steps do not fit.
    """
    estimate = outcome.estimate
    assert estimate is not None
    kept = estimate.kept_bytes or 0
    demand = demand_within(capacity_bytes)  # of less where PYTORCH_ALLOC_CONF limits it
    if estimate.verdict == DOES_NOT_FIT:  # the step does not fit, whatever the evaluation needs
        estimate.evaluation_reserved_bytes = needed_alone()
        estimate.evaluation_margin_bytes = demand.capacity_bytes - estimate.evaluation_reserved_bytes
        return
    beside_margin = demand_within(max(0, demand.capacity_bytes - kept))
    estimate.evaluation_reserved_bytes = demand.peak_reserved_bytes
    if demand.missing_bytes:
        margin = -demand.missing_bytes
    elif beside_margin.missing_bytes:
        # More may be missing beside the margin than the margin: by what is given back there, and not here.
        margin = max(0, kept - beside_margin.missing_bytes)
    else:
        margin = max(kept, demand.capacity_bytes - demand.peak_reserved_bytes)
    estimate.evaluation_margin_bytes = margin
    if not beside_margin.missing_bytes or margin >= estimate.margin_bytes:
        return
    if margin >= 0 and estimate.verdict == TIGHT:  # of the step, and said already
        return
    estimate.margin_bytes, estimate.fits, estimate.decided_by = margin, False, EVALUATION
    estimate.verdict = DOES_NOT_FIT if margin < 0 else TIGHT
    trained = outcome.memory.peak_reserved_bytes or 0
    needs = (
        f"the evaluation (eval.batch={cfg.eval.batch}) needs {units.size(demand.peak_reserved_bytes)} beside the "
        f"context, more than a training step, which needs {units.size(trained)}"
    )
    if margin >= 0:
        outcome.warnings.append(f"tight: {needs}. {LESS}")
        return
    outcome.status = "oom"
    said = f"it would not fit: {needs}. {units.size(-margin)} are missing."
    outcome.error = Error("eval", "PredictedOutOfMemory", said, LESS)
