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
from typing import Any, TextIO

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
        self.warmup_steps = warmup_steps
        self.flush_seconds = flush_seconds
        self.send = send
        self.compiled = compiled
        self.steps_per_epoch = steps_per_epoch
        self.memory = memory
        self.path: Path | None = None
        self.file: TextIO | None = None
        if folder is not None:
            self.path = folder / STEPS_FILE
            self.file = open(self.path, "w")  # noqa: SIM115 (open as long as the training runs)
        if before is None:
            before = {name: [] for name in SAVED}
        self.losses: list[float] = before["losses"]
        self.seconds: list[float] = before["seconds"]
        self.samples: list[int] = before["samples"]
        self.tokens: list[int] = before["tokens"]
        self.resumed_from = len(self.losses)
        self.learning_rates: list[float | None] = before["learning_rates"]
        self.gradient_norms: list[float | None] = before["gradient_norms"]
        self.unpadded: list[int | None] = before["unpadded"]
        self.evaluations: list[dict[str, Any]] = before["evaluations"]
        self.compiling: list[bool] = [False] * self.resumed_from  # in each step
        self.waited: Callable[[], float] = lambda: 0.0
        self.waiting: list[float] = [0.0] * self.resumed_from  # seconds of each step
        self.train_seconds: float | None = None  # once the training is over
        self._pending: list[tuple[torch.Tensor, torch.Tensor | None, Any]] = []  # (loss, norm, time), not yet read
        self._write(0)

    def begin(self) -> None:
        """Starts the time of the first step."""
        self._began = time.perf_counter()
        self._flushed = self._began
        if self.compiled:
            self._graphs = torch_private.compiled_graphs()
            self._compile_seconds = torch_private.compile_seconds()
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
        waited = self.waited()
        self.waiting.append(waited - self._waited)
        self._waited = waited
        is_compiling = False
        if self.compiled:
            graphs = torch_private.compiled_graphs()
            is_compiling = graphs != self._graphs
            self._graphs = graphs
        self.compiling.append(is_compiling)
        if time.perf_counter() - self._flushed >= self.flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Reads the pending losses (this waits for the device), writes the steps and sends a message."""
        if self._pending:
            first = len(self.losses)
            self._read_pending()
            self._write(first)
            samples_per_second = sum(self.samples[first:]) / max(sum(self.seconds[first:]), 1e-9)
            used, limit = self.memory() or (None, None)
            self.send(StepsDone(len(self.losses), self.losses[-1], samples_per_second, used, limit))
        self._flushed = time.perf_counter()

    def _read_pending(self) -> None:
        """Reads what is on the device, in one transfer each of losses and norms."""
        first = len(self.losses)
        self.losses += _read([loss for loss, _, _ in self._pending])
        norms = iter(_read([norm for _, norm, _ in self._pending if norm is not None]))
        for _, norm, time_of_step in self._pending:
            self.gradient_norms.append(None if norm is None else next(norms))
            if self.on_gpu:
                self.seconds.append(self._last_time.elapsed_time(time_of_step) / 1000)
            else:
                self.seconds.append(time_of_step - self._last_time)
            self._last_time = time_of_step
        self._pending.clear()
        self.tokens[first:] = [int(tokens) for tokens in self.tokens[first:]]  # tensors () if rows are padded

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
        if self.file is None:
            return
        for index in range(first, len(self.losses)):
            rows = [
                {
                    "step": index + 1,
                    "epoch": self._epoch(index + 1),
                    "loss": _finite(self.losses[index]),
                    "learning_rate": self.learning_rates[index],
                    "gradient_norm": _finite(self.gradient_norms[index]),
                    "seconds": round(self.seconds[index], 9),
                    "samples": self.samples[index],
                    "tokens": self.tokens[index],
                }
            ]
            rows += [evaluation for evaluation in self.evaluations if evaluation["step"] == index + 1]
            for row in rows:
                self.file.write(json.dumps(row) + "\n")
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
        steps = len(self.losses)  # the latest ones may not have been read from the device
        training = Training(steps=steps, samples=sum(self.samples[:steps]), tokens=sum(self.tokens[:steps]))
        training.losses = list(self.losses)
        if self.losses:
            training.final_loss = self.losses[-1]
        if self.resumed_from:
            training.resumed_from_step = self.resumed_from
        unpadded = [count for count in self.unpadded[:steps] if count is not None]
        if training.tokens and len(unpadded) == steps:
            training.padding_share = round(1 - sum(unpadded) / training.tokens, 6)
        return training

    def speed(self) -> Speed:
        """Step times and throughput without warm-up and compilation; with the warm-up if no other steps are left, and
        of all new steps if each has compiled."""
        new = range(self.resumed_from, len(self.losses))
        warmup_steps = self.warmup_steps
        measured = [index for index in new[warmup_steps:] if not self.compiling[index]]
        if not measured:
            warmup_steps = 0
            measured = [index for index in new if not self.compiling[index]] or list(new)
        if not measured:
            return Speed()
        seconds = [self.seconds[index] for index in measured]
        total_seconds = sum(seconds)
        tenths = [seconds[0]]
        if len(seconds) > 1:
            tenths = statistics.quantiles(seconds, n=10, method="inclusive")
        evaluation_seconds = 0.0
        for row in self.evaluations:
            if row["step"] > self.resumed_from:  # not of an earlier attempt
                evaluation_seconds += row["evaluation_seconds"] or 0.0
        compile_seconds = None
        if self.compiled:
            compile_seconds = torch_private.compile_seconds() - self._compile_seconds
        return Speed(
            warmup_steps=warmup_steps,
            measured_steps=len(measured),
            step_seconds_median=statistics.median(seconds),
            step_seconds_p10=tenths[0],
            step_seconds_p90=tenths[-1],
            samples_per_second=sum(self.samples[index] for index in measured) / total_seconds,
            tokens_per_second=sum(self.tokens[index] for index in measured) / total_seconds,
            data_wait_share=min(sum(self.waiting[index] for index in measured) / total_seconds, 1.0),
            train_seconds=self.train_seconds,
            compile_seconds=compile_seconds,
            evaluation_seconds=evaluation_seconds or None,
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
    if not figures:
        return []
    return torch.stack([figure.detach().float().reshape(()) for figure in figures]).tolist()


def _finite(value: float | None) -> float | None:
    """The value as JSON has it: null for infinity, and for what is not a number."""
    if value is None or not math.isfinite(value):
        return None
    return value
