"""The step log: loss, time, samples and tokens of each optimizer step.

A recipe calls `StepLog.step` after every optimizer step. The loss stays on the device, and on a GPU the time is a CUDA
event, so that nothing waits for the device until the log is flushed, about once a second.
"""

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from legroom.compat import torch_private
from legroom.records.messages import StepsDone
from legroom.records.record import SCORES, Evaluation, Speed, Training
from legroom.records.run_folder import STEPS_FILE

SAVED = ("losses", "seconds", "samples", "tokens", "learning_rates", "gradient_norms", "unpadded", "evaluations")


class StepLog:
    """Collects steps and, with a folder, writes `steps.jsonl` there.

    warmup_steps: steps at the start that are not part of the speed. flush_seconds: between two flushes.
    send(message): called with a `StepsDone` at each flush.
    steps_per_epoch: optimizer steps in which every row of the data is trained on once.
    compiled: steps in which torch.compile compiled a graph are not part of the speed.
    before: for a training that is resumed, what `state` returned when it was saved; no part of the speed.
    memory(): (bytes in use, bytes that may be) for the messages, asked at each flush. It must not wait for the device.
    The attribute waited(): seconds that this process has waited for batches since it began.
    """

    def __init__(
        self,
        device: torch.device | str,
        warmup_steps: int,
        flush_seconds: float,
        send: Callable[[StepsDone], object],
        folder: Path | None,
        steps_per_epoch: int = 1,
        compiled: bool = False,
        before: dict[str, list] | None = None,
        memory: Callable[[], tuple[int, int] | None] = lambda: None,
    ):
        self.on_gpu = torch.device(device).type == "cuda"
        self.warmup_steps, self.flush_seconds, self.send, self.compiled = warmup_steps, flush_seconds, send, compiled
        self.steps_per_epoch, self.memory = steps_per_epoch, memory
        self.path = Path(folder, STEPS_FILE) if folder else None
        self.file = open(self.path, "w") if self.path else None  # noqa: SIM115 (open as long as the training runs)
        before = before or {name: [] for name in SAVED}
        self.losses: list[float] = before["losses"]
        self.seconds: list[float] = before["seconds"]
        self.samples: list[int] = before["samples"]
        self.tokens: list[int] = before["tokens"]
        self.resumed_from = len(self.losses)
        self.learning_rates: list[float | None] = before["learning_rates"]
        self.gradient_norms: list[float | None] = before["gradient_norms"]
        self.unpadded: list[int | None] = before["unpadded"]
        self.evaluations: list[dict[str, Any]] = before["evaluations"]
        self.compiling: list[bool] = [False] * self.resumed_from
        self.waited: Callable[[], float] = lambda: 0.0
        self.waiting: list[float] = [0.0] * self.resumed_from  # seconds of each step
        self._pending: list[tuple[torch.Tensor, torch.Tensor | None, Any]] = []  # (loss, norm, time), not yet read
        self._write(0)

    def begin(self) -> None:
        """Starts the time of the first step."""
        self._began = self._flushed = time.perf_counter()
        self._graphs = torch_private.compiled_graphs() if self.compiled else 0
        self._compile_seconds = torch_private.compile_seconds() if self.compiled else 0.0
        self._waited = self.waited()
        self._last_time = self._time()

    def step(
        self,
        loss: torch.Tensor,
        samples: int,
        tokens: Any,
        learning_rate: float | None = None,
        gradient_norm: torch.Tensor | None = None,
        unpadded: int | None = None,
    ) -> None:
        """Adds an optimizer step, which may still run on the device.

        loss: (), the mean over the effective batch, on the device. samples, tokens: of all ranks; tokens may be a
        tensor () on the device. learning_rate: of this step. gradient_norm: (), of all gradients before clipping, on
        the device; None where nothing is clipped. unpadded: the tokens that are no padding; None: not known.
        """
        self._pending.append((loss, gradient_norm, self._time()))
        self.samples.append(samples)
        self.tokens.append(tokens)
        self.learning_rates.append(learning_rate)
        self.unpadded.append(unpadded)
        before, self._waited = self._waited, self.waited()
        self.waiting.append(self._waited - before)
        if self.compiled:
            known, self._graphs = self._graphs, torch_private.compiled_graphs()
            self.compiling.append(self._graphs != known)
        if time.perf_counter() - self._flushed >= self.flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Reads the pending losses (this waits for the device), writes the steps and sends a message."""
        if self._pending:
            losses = _read([loss for loss, _, _ in self._pending])
            norms = iter(_read([norm for _, norm, _ in self._pending if norm is not None]))
            first = len(self.losses)
            for loss, (_, norm, time_of_step) in zip(losses, self._pending):
                self.losses.append(loss)
                self.gradient_norms.append(None if norm is None else next(norms))
                last, self._last_time = self._last_time, time_of_step
                self.seconds.append(last.elapsed_time(time_of_step) / 1000 if self.on_gpu else time_of_step - last)
            self._pending.clear()
            self.tokens[first:] = map(int, self.tokens[first:])  # tensors on the device if rows are padded
            self._write(first)
            recent = slice(first, len(self.losses))
            samples_per_second = sum(self.samples[recent]) / max(sum(self.seconds[recent]), 1e-9)
            used, limit = self.memory() or (None, None)
            self.send(StepsDone(len(self.losses), self.losses[-1], samples_per_second, used, limit))
        self._flushed = time.perf_counter()

    def evaluation(self, result: Evaluation) -> None:
        """Adds an evaluation after the latest step, also after `end`. Call `flush` first. Raises OSError."""
        row = {"step": len(self.losses), "epoch": self._epoch(len(self.losses)), "evaluation_samples": result.samples}
        for key in ("loss", *SCORES, "seconds"):
            row[f"evaluation_{key}"] = _finite(getattr(result, key))
        self.evaluations.append(row)
        if self.file and not self.file.closed:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
        elif self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")

    def _epoch(self, step: int) -> float:
        return round(step / self.steps_per_epoch, 6)

    def _write(self, first: int) -> None:
        """Writes the steps from index `first` on to steps.jsonl, each with the evaluations after it."""
        if self.file:
            for index in range(first, len(self.losses)):
                row = {
                    "step": index + 1,
                    "epoch": self._epoch(index + 1),
                    "loss": _finite(self.losses[index]),
                    "learning_rate": self.learning_rates[index],
                    "gradient_norm": _finite(self.gradient_norms[index]),
                    "seconds": round(self.seconds[index], 9),
                    "samples": self.samples[index],
                    "tokens": self.tokens[index],
                }
                for line in (row, *(each for each in self.evaluations if each["step"] == index + 1)):
                    self.file.write(json.dumps(line) + "\n")
            self.file.flush()

    def restart_step_timer(self) -> None:
        """Starts the time of the next step here. Call this after an evaluation or a checkpoint, which belong to no
        step."""
        self._last_time = self._time()

    def state(self) -> dict[str, list]:
        """Every step since the first, for a checkpoint. Call `flush` first."""
        return {name: getattr(self, name) for name in SAVED}

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
        tokens = sum(self.tokens[:steps])
        unpadded = [count for count in self.unpadded[:steps] if count is not None]
        return Training(
            steps,
            sum(self.samples[:steps]),
            tokens,
            list(self.losses),
            self.losses[-1] if steps else None,
            self.resumed_from or None,
            round(1 - sum(unpadded) / tokens, 6) if tokens and len(unpadded) == steps else None,
        )

    def speed(self) -> Speed:
        """Step times and throughput without warm-up and compilation; with the warm-up if no other steps are left, and
        of all new steps if each has compiled."""
        new = slice(self.resumed_from, None)
        rows = list(zip(self.seconds[new], self.samples[new], self.tokens[new], self.waiting[new]))
        compiled = self.compiling[new] or [False] * len(rows)
        warmup = self.warmup_steps
        ready = [row for row, compiling in zip(rows, compiled) if not compiling]
        measured = [row for row, compiling in zip(rows[warmup:], compiled[warmup:]) if not compiling]
        if not measured:
            warmup, measured = 0, ready or rows
        if not measured:
            return Speed()
        seconds = [row[0] for row in measured]
        tenths = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
        own = [row for row in self.evaluations if row["step"] > self.resumed_from]  # not of an earlier attempt
        return Speed(
            warmup_steps=warmup,
            measured_steps=len(measured),
            step_seconds_median=statistics.median(seconds),
            step_seconds_p10=tenths[0],
            step_seconds_p90=tenths[-1],
            samples_per_second=sum(row[1] for row in measured) / sum(seconds),
            tokens_per_second=sum(row[2] for row in measured) / sum(seconds),
            data_wait_share=min(sum(row[3] for row in measured) / sum(seconds), 1.0),
            train_seconds=getattr(self, "train_seconds", None),
            compile_seconds=torch_private.compile_seconds() - self._compile_seconds if self.compiled else None,
            evaluation_seconds=sum(row["evaluation_seconds"] or 0.0 for row in own) or None,
        )

    def _time(self) -> Any:
        """The time on the device's queue: a CUDA event, or seconds on a CPU."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _read(figures: list[torch.Tensor]) -> list[float]:
    """Figures () on the device as numbers, in one transfer."""
    return torch.stack([figure.detach().float().reshape(()) for figure in figures]).tolist() if figures else []


def _finite(value: float | None) -> float | None:
    """The value as JSON has it: null for infinity, and for what is not a number."""
    return value if value is not None and math.isfinite(value) else None
