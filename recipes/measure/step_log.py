"""The journal: what each optimizer step lost and took, without getting in the step's way.

A recipe calls `step` once after every optimizer step. The loss stays on the device, and on a GPU
the time is an event in its own queue: nothing waits until the journal is flushed, about once a second.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from recipes.records.messages import StepsDone
from recipes.records.record import Speed, Training
from recipes.records.run_folder import STEPS_FILE


class StepLog:
    """Collects steps, writes `steps.jsonl` (folder None: not), and tells the parent how far it is.

    tell(message): called with a `StepsDone` at each flush.
    compiled: steps in which torch.compile was at work are left out of the speed.
    before: what `state` gave when the training that is resumed was saved; those steps are in no figure of speed.
    """

    def __init__(
        self,
        device: torch.device,
        warmup_steps: int,
        flush_seconds: float,
        tell: Callable[[StepsDone], object],
        folder: Path | None,
        compiled: bool = False,
        before: dict | None = None,
    ):
        self.on_gpu = torch.device(device).type == "cuda"
        self.warmup_steps, self.flush_seconds, self.tell, self.compiled = warmup_steps, flush_seconds, tell, compiled
        self.file = open(Path(folder, STEPS_FILE), "w") if folder else None  # noqa: SIM115 (lives as long as the job)
        before = before or {"losses": [], "seconds": [], "samples": [], "tokens": []}
        self.losses: list[float] = before["losses"]
        self.seconds: list[float] = before["seconds"]
        self.samples: list[int] = before["samples"]
        self.tokens: list[int] = before["tokens"]
        self.resumed_from = len(self.losses)
        self.compiling: list[bool] = [False] * self.resumed_from
        self._pending: list[tuple] = []  # (loss on the device, stamp), not yet read back
        self._write(0)

    def begin(self) -> None:
        """The training starts now."""
        self._began = self._flushed = time.perf_counter()
        self._compilations = _compilations() if self.compiled else 0
        self._last_stamp = self._stamp()

    def step(self, loss: torch.Tensor, samples: int, tokens: int) -> None:
        """One optimizer step is queued. loss: (), the mean over the effective batch, on the device.

        samples, tokens: of all ranks; tokens may be () on the device.
        """
        self._pending.append((loss, self._stamp()))
        self.samples.append(samples)
        self.tokens.append(tokens)
        if self.compiled:
            before, self._compilations = self._compilations, _compilations()
            self.compiling.append(self._compilations != before)
        if time.perf_counter() - self._flushed >= self.flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Read the pending losses back (this waits for the device), write and tell them."""
        if self._pending:
            losses = torch.stack([loss.detach().float().reshape(()) for loss, _ in self._pending]).tolist()
            first = len(self.losses)
            for loss, (_, stamp) in zip(losses, self._pending):
                self.losses.append(loss)
                self.seconds.append(self._between(self._last_stamp, stamp))
                self._last_stamp = stamp
            self._pending.clear()
            self.tokens[first:] = map(int, self.tokens[first:])  # counted on the device, where ranks pad differently
            self._write(first)
            recent = slice(first, len(self.losses))
            samples_per_second = sum(self.samples[recent]) / max(sum(self.seconds[recent]), 1e-9)
            self.tell(StepsDone(len(self.losses), self.losses[-1], samples_per_second))
        self._flushed = time.perf_counter()

    def _write(self, first: int) -> None:
        """The steps from `first` on, into steps.jsonl."""
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

    def leave_out(self) -> None:
        """What was done since the last flush (a checkpoint) is part of no step."""
        self._last_stamp = self._stamp()

    def state(self) -> dict:
        """Every step since the first, for a checkpoint. Call it after a flush."""
        return {"losses": self.losses, "seconds": self.seconds, "samples": self.samples, "tokens": self.tokens}

    def end(self) -> None:
        """The training is over: read back what is left."""
        self.flush()
        self.train_seconds = time.perf_counter() - self._began
        if self.file:
            self.file.close()

    def break_off(self) -> None:
        """The training ended early: keep what can still be read back."""
        with contextlib.suppress(Exception):  # the device may be what failed, and its error is on its way already
            self.end()

    # --- what came of it ---

    def training(self) -> Training:
        """Everything trained so far, also when the training broke off."""
        steps = len(self.losses)
        return Training(
            steps,
            sum(self.samples[:steps]),
            sum(self.tokens[:steps]),
            self.losses,
            self.losses[-1] if steps else None,
            self.resumed_from or None,
        )

    def speed(self) -> Speed:
        """Step times and throughput without warm-up and compilation; of all steps where none is left."""
        new = slice(self.resumed_from, None)
        rows = list(zip(self.seconds[new], self.samples[new], self.tokens[new]))
        busy = self.compiling[new] or [False] * len(rows)
        warmup = self.warmup_steps
        measured = [row for row, compiling in zip(rows[warmup:], busy[warmup:]) if not compiling]
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

    def _stamp(self):
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, earlier, later) -> float:
        return earlier.elapsed_time(later) / 1000 if self.on_gpu else later - earlier


def _compilations() -> int:
    """How many graphs torch.compile has compiled in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]
