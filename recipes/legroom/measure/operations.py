"""measure.operations: the seconds of every operation of one step, under torch's profiler.

A dispatch mode runs each operation inside a range of the profiler, so that the seconds of a range are those of one
operation: on a GPU of its kernels, on a CPU of the call. What the mode itself does lies outside of the ranges.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from legroom.config import Config
from legroom.estimator.ledger.memory_ledger import MemoryLedger
from legroom.estimator.ledger.op_observer import OpObserverMode
from legroom.estimator.speed.anatomy import Anatomy, Call, anatomy
from legroom.estimator.speed.operations import Operation, classify
from legroom.measure import memory_breakdown
from legroom.parallelism import unwrap
from legroom.records.messages import Progress
from legroom.records.record import Record

RANGE = "legroom operation "


def enter(cfg: Config, record: Record, loop: Any, progress: Progress) -> dict[str, Any] | None:
    """Takes one more step, and puts what its operations come to into the record.

    A failure is a warning with one rank, and raised with several. Returns what the run's page shows.
    """
    try:
        measured = measure(cfg, loop)
    except Exception as error:
        return memory_breakdown.say_failure("the operations could not be measured", error, progress)
    record.operations = measured.summary
    if cfg.compiles:
        progress.warn("measure.operations: the operations are those of the step as written, not as compiled.")
    return measured.details


def measure(cfg: Config, loop: Any) -> Anatomy:
    """Takes one more step of a loop of either recipe, and returns what its operations come to on this rank."""
    device = loop.accelerator.device
    ledger = MemoryLedger(loop.bare_model, unwrap.inner_optimizer(loop.optimizer), device, record_origins=True)
    step = TimedStep(ledger, device.type == "cuda")
    memory_breakdown.one_more_step(cfg, loop, step)
    return anatomy(step.calls(), "cuda" if device.type == "cuda" else "cpu")


class TimedStep:
    """Use as `with TimedStep(ledger, on_gpu) as step: ...`, then read `calls()`. ledger: with origins."""

    def __init__(self, ledger: MemoryLedger, on_gpu: bool):
        self.ledger = ledger
        self.on_gpu = on_gpu
        self._operations: list[tuple[str, str, Operation | None]] = []  # (phase, module, operation) by their number
        self._contexts = ExitStack()

    # --- an OpObserver ---

    def before(self, func: Any, tensors: list[torch.Tensor]) -> None:
        self.ledger.before(func, tensors)

    def around(self) -> AbstractContextManager:
        """The profiler's range of the operation that comes next."""
        return record_function(f"{RANGE}{len(self._operations)}")

    def after(self, func: Any, args: Any, kwargs: Any, result: Any, signature: Any) -> None:
        self.ledger.after(func, args, kwargs, result, signature)
        assert self.ledger.origins is not None, "the ledger records origins"
        operation = classify(func, args, result, kwargs)
        self._operations.append((self.ledger.log.phase.latest, self.ledger.origins.module, operation))

    def on_subclass(self, func: Any) -> None:
        self.ledger.on_subclass(func)

    # --- around the step ---

    def __enter__(self) -> TimedStep:
        activities = [ProfilerActivity.CPU]
        if self.on_gpu:
            activities.append(ProfilerActivity.CUDA)
        with ExitStack() as contexts:
            self.ledger.begin_step()
            contexts.callback(self.ledger.end_step)
            if self.on_gpu:
                torch.cuda.synchronize()
            self._profile = contexts.enter_context(profile(activities=activities, acc_events=True))
            if self.on_gpu:
                contexts.callback(torch.cuda.synchronize)
            contexts.enter_context(OpObserverMode(self, self.around))
            self._contexts = contexts.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._contexts.close()

    # --- after the step ---

    def calls(self) -> list[Call]:
        """The operations that run on the device, with their seconds; equal ones together."""
        seconds: Counter[int] = Counter()  # of each operation by its number
        for event in self._profile.events() or ():
            if event.name.startswith(RANGE) and event.device_type.name == "CPU":
                microseconds = event.device_time_total if self.on_gpu else event.cpu_time_total
                seconds[int(event.name.removeprefix(RANGE))] += microseconds / 1e6
        times: Counter[tuple[str, str, Operation]] = Counter()
        totals: dict[tuple[str, str, Operation], float] = {}
        for number, (phase, module, operation) in enumerate(self._operations):
            if operation is None:  # it does nothing on the device
                continue
            key = (phase, module, operation)
            times[key] += 1
            totals[key] = totals.get(key, 0.0) + seconds[number]
        calls = []
        for (phase, module, operation), total in totals.items():
            calls.append(Call(phase, module, operation, times[phase, module, operation], total, None))
        return calls
