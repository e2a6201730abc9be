"""The step log: loss, time, samples and tokens of each optimizer step.

A recipe calls `StepLog.step` after every optimizer step. The loss stays on the device, and on a GPU the time is a CUDA
event, so that nothing waits for the device until the log is flushed, about once a second.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from recipes.records.messages import StepsDone
from recipes.records.record import Speed, Training
from recipes.records.run_folder import STEPS_FILE
from recipes.third_party import torch_private


class StepLog:
    """Collects steps and, with a folder, writes `steps.jsonl` there.

    warmup_steps: steps at the start that are not part of the speed. flush_seconds: between two flushes.
    send(message): called with a `StepsDone` at each flush.
    compiled: steps in which torch.compile compiled a graph are not part of the speed.
    before: for a training that is resumed, what `state` returned when it was saved; no part of the speed.
    """

    def __init__(
        self,
        device: torch.device | str,
        warmup_steps: int,
        flush_seconds: float,
        send: Callable[[StepsDone], object],
        folder: Path | None,
        compiled: bool = False,
        before: dict[str, list] | None = None,
    ):
        self.on_gpu = torch.device(device).type == "cuda"
        self.warmup_steps, self.flush_seconds, self.send, self.compiled = warmup_steps, flush_seconds, send, compiled
        self.file = open(Path(folder, STEPS_FILE), "w") if folder else None  # noqa: SIM115 (open as long as the job runs)
        before = before or {"losses": [], "seconds": [], "samples": [], "tokens": []}
        self.losses: list[float] = before["losses"]
        self.seconds: list[float] = before["seconds"]
        self.samples: list[int] = before["samples"]
        self.tokens: list[int] = before["tokens"]
        self.resumed_from = len(self.losses)
        self.compiling: list[bool] = [False] * self.resumed_from
        self._pending: list[tuple[torch.Tensor, Any]] = []  # (loss on the device, time), not yet read
        self._write(0)

    def begin(self) -> None:
        """Starts the time of the first step."""
        self._began = self._flushed = time.perf_counter()
        self._graphs = torch_private.compiled_graphs() if self.compiled else 0
        self._last_time = self._time()

    def step(self, loss: torch.Tensor, samples: int, tokens: Any) -> None:
        """Adds an optimizer step, which may still run on the device.

        loss: (), the mean over the effective batch, on the device. samples, tokens: of all ranks; tokens may be a
        tensor () on the device.
        """
        self._pending.append((loss, self._time()))
        self.samples.append(samples)
        self.tokens.append(tokens)
        if self.compiled:
            before, self._graphs = self._graphs, torch_private.compiled_graphs()
            self.compiling.append(self._graphs != before)
        if time.perf_counter() - self._flushed >= self.flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Reads the pending losses (this waits for the device), writes the steps and sends a message."""
        if self._pending:
            losses = torch.stack([loss.detach().float().reshape(()) for loss, _ in self._pending]).tolist()
            first = len(self.losses)
            for loss, (_, time_of_step) in zip(losses, self._pending):
                self.losses.append(loss)
                self.seconds.append(self._seconds_between(self._last_time, time_of_step))
                self._last_time = time_of_step
            self._pending.clear()
            self.tokens[first:] = map(int, self.tokens[first:])  # tensors on the device if rows are padded
            self._write(first)
            recent = slice(first, len(self.losses))
            samples_per_second = sum(self.samples[recent]) / max(sum(self.seconds[recent]), 1e-9)
            self.send(StepsDone(len(self.losses), self.losses[-1], samples_per_second))
        self._flushed = time.perf_counter()

    def _write(self, first: int) -> None:
        """Writes the steps from index `first` on to steps.jsonl."""
        if self.file:
            for index in range(first, len(self.losses)):
                loss = self.losses[index]
                self.file.write(
                    json.dumps(
                        {
                            "step": index + 1,
                            "loss": loss if math.isfinite(loss) else None,
                            "seconds": round(self.seconds[index], 9),
                            "samples": self.samples[index],
                            "tokens": self.tokens[index],
                        }
                    )
                    + "\n"
                )
            self.file.flush()

    def restart_step_timer(self) -> None:
        """Starts the time of the next step here. Call this after a checkpoint, which belongs to no step."""
        self._last_time = self._time()

    def state(self) -> dict[str, list]:
        """Every step since the first, for a checkpoint. Call `flush` first."""
        return {"losses": self.losses, "seconds": self.seconds, "samples": self.samples, "tokens": self.tokens}

    def end(self) -> None:
        """Flushes the log and closes the file after the training."""
        self.flush()
        self.train_seconds = time.perf_counter() - self._began
        if self.file:
            self.file.close()

    def end_after_failure(self) -> None:
        """Ends the log of a training that failed, with the steps that can still be read."""
        with contextlib.suppress(Exception):  # a failed device raises again; the first error is being handled already
            self.end()

    # --- results ---

    def training(self) -> Training:
        """The steps so far, also of a training that failed."""
        steps = len(self.losses)
        return Training(
            steps,
            sum(self.samples[:steps]),
            sum(self.tokens[:steps]),
            list(self.losses),
            self.losses[-1] if steps else None,
            self.resumed_from or None,
        )

    def speed(self) -> Speed:
        """Step times and throughput without warm-up and compilation; of all new steps if no other steps are left."""
        new = slice(self.resumed_from, None)
        rows = list(zip(self.seconds[new], self.samples[new], self.tokens[new]))
        compiled = self.compiling[new] or [False] * len(rows)
        warmup = self.warmup_steps
        measured = [row for row, compiling in zip(rows[warmup:], compiled[warmup:]) if not compiling]
        if not measured:
            warmup, measured = 0, rows
        if not measured:
            return Speed()
        seconds = [row[0] for row in measured]
        tenths = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
        return Speed(
            warmup_steps=warmup,
            measured_steps=len(measured),
            step_seconds_median=statistics.median(seconds),
            step_seconds_p10=tenths[0],
            step_seconds_p90=tenths[-1],
            samples_per_second=sum(row[1] for row in measured) / sum(seconds),
            tokens_per_second=sum(row[2] for row in measured) / sum(seconds),
            train_seconds=getattr(self, "train_seconds", None),
        )

    def _time(self) -> Any:
        """The time on the device's queue: a CUDA event, or seconds on a CPU."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds_between(self, earlier: Any, later: Any) -> float:
        return earlier.elapsed_time(later) / 1000 if self.on_gpu else later - earlier
