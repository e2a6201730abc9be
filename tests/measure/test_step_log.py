"""The step log: step times and throughput without the warm-up, and what is written of each step."""

from __future__ import annotations

import json
import math
import time
import types

import pytest
import torch

from legroom.compat import torch_private
from legroom.measure import step_log
from legroom.measure.step_log import StepLog
from legroom.records.record import Evaluation


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves: clock.now, in seconds."""
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(step_log, "time", types.SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def logged_steps(clock, seconds, warmup=3, losses=None, samples=4, tokens=128, folder=None, flush_seconds=1e9, **more):
    """A log of steps that took these seconds, and the messages that it sent."""
    messages = []
    log = StepLog(torch.device("cpu"), warmup, flush_seconds, messages.append, folder, **more)
    log.begin()
    for index, taken in enumerate(seconds):
        clock.now += taken
        log.step(torch.tensor(losses[index] if losses else 1.0), samples, tokens)
    log.end()
    return log, messages


def test_the_warm_up_is_left_out_of_times_and_throughput(clock):
    speed = logged_steps(clock, [10, 10, 10, 1, 2, 1, 2])[0].speed()
    assert (speed.warmup_steps, speed.measured_steps) == (3, 4)
    assert speed.step_seconds_median == pytest.approx(1.5)
    assert speed.samples_per_second == pytest.approx(4 * 4 / 6)  # samples over the seconds of the same steps
    assert speed.tokens_per_second == pytest.approx(4 * 128 / 6)


def test_the_share_that_waits_for_data_is_of_the_measured_steps(clock):
    """Waits, as the steps, are 10 in the warm-up; then half of two steps of 1 s, and none of two of 2 s."""
    waits = iter([3, 13, 13.5, 14, 14, 14])  # since the process began; the first before the training
    log = StepLog("cpu", 1, 1e9, lambda _: None, None)
    log.waited = lambda: next(waits)
    log.begin()
    for taken in (10, 1, 1, 2, 2):
        clock.now += taken
        log.step(torch.tensor(1.0), 4, 128)
    log.end()
    assert log.speed().data_wait_share == pytest.approx(1 / 6)
    assert logged_steps(clock, [1] * 5)[0].speed().data_wait_share == 0


def test_the_whole_loop_has_its_time_with_the_warm_up(clock):
    log, _ = logged_steps(clock, [10, 1, 1])
    assert log.speed().train_seconds == pytest.approx(12)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_when_no_step_is_left_all_are_measured(clock, steps):
    speed = logged_steps(clock, [2] * steps)[0].speed()
    assert (speed.warmup_steps, speed.measured_steps) == (0, steps)
    assert speed.samples_per_second == pytest.approx(2)


def test_a_short_last_batch_counts_with_its_own_samples(clock):
    log = StepLog(torch.device("cpu"), 0, 1e9, lambda *_, **__: None, None)
    log.begin()
    for samples in (4, 4, 1):
        clock.now += 1
        log.step(torch.tensor(1.0), samples, samples * 8)
    log.end()
    assert log.speed().samples_per_second == pytest.approx(3)
    assert (log.training().samples, log.training().tokens) == (9, 72)


def test_quantiles_lie_within_what_was_measured(clock):
    speed = logged_steps(clock, range(1, 12), warmup=0)[0].speed()  # 1 to 11 seconds
    assert (speed.step_seconds_p10, speed.step_seconds_median, speed.step_seconds_p90) == pytest.approx((2, 6, 10))


def test_one_measured_step_is_its_own_quantiles(clock):
    speed = logged_steps(clock, [9, 9, 9, 5])[0].speed()
    assert speed.step_seconds_p10 == speed.step_seconds_median == speed.step_seconds_p90 == pytest.approx(5)


def test_no_step_at_all_has_no_speed(clock):
    log, _ = logged_steps(clock, [])
    assert log.training().steps == 0 and log.training().final_loss is None
    assert log.speed().step_seconds_median is None and log.speed().samples_per_second is None


def test_each_step_is_a_line(clock, tmp_path):
    logged_steps(clock, [1, 2, 3], losses=[3.0, 2.0, 1.0], folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert [line["loss"] for line in lines] == [3.0, 2.0, 1.0]
    assert [line["seconds"] for line in lines] == pytest.approx([1, 2, 3])
    assert all((line["samples"], line["tokens"]) == (4, 128) for line in lines)


def test_a_line_has_rate_norm_and_epoch(clock, tmp_path):
    log = StepLog(torch.device("cpu"), 0, 1e9, lambda _: None, tmp_path, steps_per_epoch=4)
    log.begin()
    for rate, norm in [(0.1, torch.tensor(2.0)), (0.05, None), (0.0, torch.tensor(math.inf))]:
        log.step(torch.tensor(1.0), 4, 128, rate, norm)
    log.end()
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["learning_rate"] for line in lines] == [0.1, 0.05, 0.0]
    assert [line["gradient_norm"] for line in lines] == [2.0, None, None]  # nothing was clipped; fp16 overflowed
    assert [line["epoch"] for line in lines] == [0.25, 0.5, 0.75]


def test_a_loss_that_is_no_number_is_null_in_its_line(clock, tmp_path):
    log, _ = logged_steps(clock, [1, 1, 1], losses=[1.0, math.nan, math.inf], folder=tmp_path)
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [1.0, None, None]
    assert "NaN" not in "".join(lines) and "Infinity" not in "".join(lines)
    assert math.isnan(log.training().losses[1])


def test_losses_are_read_back_now_and_then_only(clock):
    """A second between two looks at the device, whatever the steps take."""
    _, messages = logged_steps(clock, [0.25] * 9, losses=[float(n) for n in range(9)], flush_seconds=1.0)
    assert [(message.step, message.loss) for message in messages] == [(4, 3.0), (8, 7.0), (9, 8.0)]
    assert [message.samples_per_second for message in messages] == pytest.approx([16, 16, 16])


def test_steps_that_compiled_are_left_out(clock, monkeypatch):
    compiled = iter([0, 1, 1, 1, 2, 2])  # at the start, then after each step
    monkeypatch.setattr(torch_private, "compiled_graphs", lambda: next(compiled))
    speed = logged_steps(clock, [50, 1, 1, 50, 1], warmup=1, compiled=True)[0].speed()
    assert speed.measured_steps == 3 and speed.step_seconds_median == pytest.approx(1)
    assert speed.samples_per_second == pytest.approx(4)


@pytest.mark.parametrize("graphs, seconds", [([0, 1, 1, 1], [1, 1]), ([0, 1, 2, 3], [50, 1, 1])])
def test_a_run_that_is_all_warm_up_leaves_compilation_out_if_it_can(clock, monkeypatch, graphs, seconds):
    compiled = iter(graphs)
    monkeypatch.setattr(torch_private, "compiled_graphs", lambda: next(compiled))
    speed = logged_steps(clock, [50, 1, 1], warmup=3, compiled=True)[0].speed()
    assert (speed.warmup_steps, speed.measured_steps) == (0, len(seconds))
    assert speed.samples_per_second == pytest.approx(4 * len(seconds) / sum(seconds))


def test_a_job_writes_its_steps_unless_the_tracker_is_none(train):
    run = train("tracker=local", "train.max_steps=3", "train.log_seconds=0")
    lines = [json.loads(line) for line in (run.folder / "steps.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines[:3]] == run.record.training.losses
    assert [line["evaluation_loss"] for line in lines[3:]] == [run.record.evaluation.loss]
    assert not (train("tracker=none").folder / "steps.jsonl").exists()


def test_a_job_leaves_out_its_warm_up(train):
    speed = train("train.max_steps=5", "measure.warmup_steps=3").record.speed
    assert (speed.warmup_steps, speed.measured_steps) == (3, 2)
    assert speed.step_seconds_p10 <= speed.step_seconds_median <= speed.step_seconds_p90 < speed.train_seconds
    assert speed.tokens_per_second == pytest.approx(speed.samples_per_second * 32)
    assert speed.mfu is None


def test_a_resumed_log_has_every_step_and_the_speed_of_the_new_ones(tmp_path):
    (tmp_path / "steps.jsonl").write_text("what the run that was stopped has written\n")
    before = {"losses": [3.0, float("nan")], "seconds": [9.0, 9.0], "samples": [4, 4], "tokens": [8, 8]}
    before |= {"learning_rates": [0.5, 0.5], "gradient_norms": [None] * 2, "unpadded": [8, 8], "evaluations": []}
    log = StepLog(torch.device("cpu"), 1, 1e9, lambda *_, **__: None, tmp_path, before=before)
    log.begin()
    for step in range(3):
        log.step(torch.tensor(float(step)), 2, 4)
    log.flush()
    time.sleep(0.2)  # a checkpoint
    log.restart_step_timer()
    log.step(torch.tensor(3.0), 2, 4)
    log.end()
    training, speed = log.training(), log.speed()
    assert (training.steps, training.samples, training.tokens, training.resumed_from_step) == (6, 16, 32, 2)
    assert training.losses[0] == 3.0 and training.losses[2:] == [0.0, 1.0, 2.0, 3.0]
    assert (speed.warmup_steps, speed.measured_steps) == (1, 3) and speed.step_seconds_p90 < 0.1
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6] and rows[1]["loss"] is None
    assert [row["learning_rate"] for row in rows] == [0.5, 0.5, None, None, None, None]


def test_evaluations_stay_in_a_resumed_log(clock, tmp_path):
    log = StepLog("cpu", 0, 1e9, lambda _: None, tmp_path, steps_per_epoch=2)
    log.begin()
    for step in range(3):
        clock.now += 1
        log.step(torch.tensor(1.0), 2, 4)
        log.flush()
        if step == 1:
            clock.now += 5
            log.evaluation(Evaluation(8, 0.5, accuracy=0.75, seconds=5.0))
            log.restart_step_timer()
    state = json.loads(json.dumps(log.state()))
    log.end()
    assert log.speed().evaluation_seconds == 5 and log.speed().step_seconds_p90 == pytest.approx(1)
    log.evaluation(Evaluation(8, math.nan))  # after the training
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(row["step"], "loss" in row) for row in rows] == [(1, True), (2, True), (2, False), (3, True), (3, False)]
    assert rows[2]["evaluation_loss"] == 0.5 and rows[2]["evaluation_accuracy"] == 0.75 and rows[2]["epoch"] == 1
    assert rows[4]["evaluation_loss"] is None
    resumed = StepLog("cpu", 0, 1e9, lambda _: None, tmp_path, steps_per_epoch=2, before=state)
    resumed.end_after_failure()
    assert [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()] == rows[:4]
    assert resumed.speed().evaluation_seconds is None, "of the earlier attempt"


def test_a_resumed_log_keeps_learning_rates_and_norms(tmp_path):
    log = StepLog("cpu", 0, 1e9, lambda _: None, None)
    log.begin()
    log.step(torch.tensor(1.0), 2, 4, 0.5, torch.tensor(3.0))
    log.flush()
    resumed = StepLog("cpu", 0, 1e9, lambda _: None, tmp_path, before=log.state())
    resumed.end_after_failure()
    row = json.loads((tmp_path / "steps.jsonl").read_text())
    assert (row["learning_rate"], row["gradient_norm"]) == (0.5, 3.0)
