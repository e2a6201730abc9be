"""Whole step logs of made-up trainings: their lines, messages, training and speed, as kept."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from support.known_values import known

from legroom.measure import step_log
from legroom.measure.step_log import StepLog
from legroom.records.record import Evaluation
from legroom.third_party import torch_private

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


def shown(log, messages, folder):
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return known({"lines": lines, "messages": messages, "training": log.training(), "speed": log.speed()})


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


@pytest.mark.parametrize("device, flush_seconds", [("cpu", 3.0), ("cuda", 2.0)])
def test_a_log_is_the_kept_one(data_regression, clock, tmp_path, device, flush_seconds):
    messages, memory = [], iter([None, (5, 10), (7, 11), None, (6, 10), (1, 2), (3, 4)])
    log = StepLog(device, 1, flush_seconds, messages.append, tmp_path, 7, memory=lambda: next(memory))
    followed(clock, log)
    log.end()
    log.evaluation(Evaluation(9, math.inf, seconds=2.0))
    found = shown(log, messages, tmp_path)
    assert log.speed().train_seconds == pytest.approx(sum(TAKEN) + 4.5)
    data_regression.check(found, basename="test_a_log_is_the_kept_one")  # on either device


def test_a_resumed_log_is_the_kept_one(data_regression, clock, tmp_path):
    log = StepLog("cpu", 0, 1e9, lambda _: None, None)
    followed(clock, log, unpadded=False)
    log.flush()
    log.evaluation(Evaluation(8, 0.25, seconds=64.0))
    state = json.loads(json.dumps(log.state()))
    messages = []
    resumed = StepLog("cpu", 2, 1e9, messages.append, tmp_path, 3, before=state)
    written = len((tmp_path / "steps.jsonl").read_text().splitlines())
    assert written == 9, "the steps and evaluations from before stand there at once"
    followed(clock, resumed, first=1)
    resumed.end_after_failure()
    found = shown(resumed, messages, tmp_path)
    data_regression.check(found)


@pytest.mark.parametrize("warmup", [0, 2, 9])
def test_a_compiled_log_is_the_kept_one(data_regression, clock, tmp_path, monkeypatch, warmup):
    graphs, seconds = iter([4, 5, 5, 6, 6, 6, 7, 7, 7]), iter([2.0, 9.5])
    monkeypatch.setattr(torch_private, "compiled_graphs", lambda: next(graphs))
    monkeypatch.setattr(torch_private, "compile_seconds", lambda: next(seconds))
    log = StepLog("cpu", warmup, 1e9, lambda _: None, None, compiled=True)
    followed(clock, log)
    log.end()
    data_regression.check(known(log.speed()))


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_the_speed_of_few_steps_is_the_kept_one(data_regression, clock, steps):
    """Also where the process has waited longer than the steps took."""
    log = StepLog("cpu", 0, 1e9, lambda _: None, None)
    waits = iter([0.0, 7.0, 8.0])
    log.waited = lambda: next(waits)
    log.begin()
    for taken in (2.0, 5.0)[:steps]:
        clock.now += taken
        log.step(torch.tensor(1.0), 3, 6, unpadded=6)
    log.flush()
    data_regression.check(known({"speed": log.speed(), "training": log.training()}))


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
