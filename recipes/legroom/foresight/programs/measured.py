"""A real run of somebody's script under the observers with which its prediction was made."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom.foresight import user_step
from legroom.foresight.programs.called import CalledModules
from legroom.foresight.programs.played_processes import batches_in, spawning_here
from legroom.foresight.programs.steps import Watch
from legroom.measure import device_memory
from legroom.measure.memory_ledger import MemoryLedger
from legroom.measure.op_observer import OpObserverMode
from legroom.third_party import torch_private

OBSERVED = 2  # optimizer steps whose tensors are counted, as in a prediction; the later ones are timed without observer
WARM_UP = 1  # steps after those that are not timed: caches, and compilation


@contextlib.contextmanager
def observe(options: dict[str, Any], watch: Watch) -> Iterator[Callable[[], dict[str, Any]]]:
    """The observer of `legroom measure`, as `process.Asked` names it. It has no options."""
    measured = _Measured(watch)
    with measured.counting():
        yield measured.found


class _Measured:
    """Counts the storages of a script from its beginning to the end of its second step, and times the steps after it.

    Another ledger takes over when the model is known, after the first step.
    """

    def __init__(self, watch: Watch):
        self.on_gpu = torch.cuda.is_available()
        self.device = "cuda" if self.on_gpu else "cpu"
        self.ledger = MemoryLedger(torch.nn.ModuleList(), user_step.optimizer_of(None), self.device)
        self.log = self.ledger.log
        self.watch = watch
        self.called = CalledModules(lambda _: self.log.phase.begin_forward())
        self.parts: dict[str, Any] = {}
        self.notes: list[str] = []
        self.figures: dict[str, Any] = {}
        self.ends: list[float] = []  # time.perf_counter() at the end of each step
        self.mode = OpObserverMode(self.ledger)
        self._observing = contextlib.ExitStack()
        watch.on_step.append(self._stepped)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        self.ledger.begin_step()
        torch.compiler.set_stance("force_eager")  # the log does not see allocations of compiled code
        self._observing.enter_context(self.mode)
        try:
            with spawning_here(0), batches_in(self.log, torch_private.without_dispatch_modes):
                yield
        finally:
            self._observing.close()
            self.called.remove()

    def _stepped(self, number: int, optimizers: list[torch.optim.Optimizer]) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
        if number <= OBSERVED:
            self.ledger.end_step()
        if number < OBSERVED:
            model, optimizer = self.called.model(optimizers), user_step.optimizer_of(optimizers)
            self.ledger = self.mode.observer = MemoryLedger(model, optimizer, self.device, log=self.log)
            self.ledger.begin_step()
        elif number == OBSERVED:
            self._conclude()
        self.ends.append(time.perf_counter())

    def _conclude(self) -> None:
        """The figures at the end of the steps whose tensors are counted; from here on nobody observes."""
        self.parts = self.ledger.parts()
        weights = list(self.ledger.model.parameters())
        self.figures = {
            "model_flops": self.ledger.model_flops,
            "parameters": sum(weight.numel() for weight in weights),
            "trained_parameters": sum(weight.numel() for weight in weights if weight.requires_grad),
            "device_used_bytes": device_memory.nvml_used_bytes(),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated() if self.on_gpu else None,
            "peak_reserved_bytes": torch.cuda.max_memory_reserved() if self.on_gpu else None,
        }
        others = {weight.device.type for weight in weights} - {self.device}
        if others:
            self.notes.append(f"weights are on {', '.join(sorted(others))}, and only tensors on {self.device} count.")
        self._observing.close()
        torch.compiler.set_stance("default")

    def found(self) -> dict[str, Any]:
        """What was measured, as JSON knows it; bytes and seconds. Without the second step there are no parts."""
        ends = self.ends[OBSERVED + WARM_UP - 1 :]
        seconds = [after - before for before, after in zip(ends, ends[1:])]
        device_name = torch.cuda.get_device_name() if self.on_gpu else "cpu"
        return {
            "device": self.device,
            "device_name": device_name,
            "steps": self.watch.done,
            "skipped_steps": self.watch.skipped,
            "step_seconds": seconds,
            "step_seconds_median": statistics.median(seconds) if seconds else None,
            "notes": self.notes,
            **self.parts,
            **self.figures,
        }
