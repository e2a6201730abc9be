"""Whole step logs of made-up trainings: their lines, messages, training and speed, as kept."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from legroom.measure import step_log
from legroom.measure.step_log import StepLog
from legroom.records.record import Evaluation

TAKEN = (9.0, 1.0, 2.0, 1 / 3, 0.5, 3.0, 0.0)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves: clock.now, in seconds. A CUDA event is its time, in milliseconds."""
    clock = SimpleNamespace(now=100.0)

    class Event:
        def __init__(self, enable_timing=False):
            assert enable_timing

        def record(self):
            self.at = clock.now

        def elapsed_time(self, other):
            return (other.at - self.at) * 1000

    monkeypatch.setattr(step_log, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return clock


def followed(clock, log, first=0, unpadded=True):
    """Steps of many kinds, with an evaluation after the third and one after the training."""
    waits = iter([0.02 * n * n for n in range(20)])
    log.waited = lambda: next(waits)
    log.begin()
    for index, taken in enumerate(TAKEN):
        clock.now += taken
        rows = index + 2
        counted = torch.tensor(rows * 10) if index % 2 else rows * 10
        norm = None if index == 3 else torch.tensor(math.inf if index == 1 else index / 7)
        loss = torch.tensor(math.nan if index == 4 else first + 1 / (index + 1), requires_grad=True)
        log.step(
            loss,
            rows,
            counted,
            None if index == 2 else 0.1 / (index + 1),
            norm,
            rows * 7 + (index == 0) if unpadded else None,
        )
        if index == 2:
            log.flush()
            clock.now += 4
            log.evaluation(Evaluation(8, 0.5, accuracy=0.75, seconds=4.0))
            log.restart_step_timer()
    clock.now += 0.5


def test_steps_are_in_the_file_once_they_are_flushed(clock, tmp_path):
    """Whoever looks on sees them; and an evaluation as it ends."""
    path = tmp_path / "steps.jsonl"
    log = StepLog("cpu", 0, 2.0, lambda _: None, tmp_path)
    log.begin()
    seen = []
    for taken in (1.0, 1.0, 1.0, 1.0):
        clock.now += taken
        log.step(torch.tensor(1.0), 1, 1)
        seen.append(len(path.read_text().splitlines()))
    assert seen == [0, 2, 2, 4]
    log.evaluation(Evaluation(1, 1.0))
    assert len(path.read_text().splitlines()) == 5
    log.end()
    assert log.file is not None and log.file.closed


def test_without_a_folder_nothing_is_written_and_figures_are_the_same(clock, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = StepLog("cpu", 0, 1.0, lambda _: None, None)
    followed(clock, log)
    log.end()
    log.evaluation(Evaluation(1, 1.0))
    assert log.training().steps == 7 and len(log.evaluations) == 2 and not list(tmp_path.iterdir())


def test_a_log_whose_device_fails_ends_with_what_was_read(clock, tmp_path):
    log = StepLog("cpu", 0, 1e9, lambda _: None, tmp_path)
    log.begin()
    clock.now += 1
    log.step(torch.tensor(1.0), 1, 1)
    log.flush()
    log.step(torch.empty((), device="meta"), 1, 1)  # cannot be read
    log.end_after_failure()
    assert (log.training().losses, log.training().samples) == ([1.0], 1)
