"""The whole run of an estimate: its parts, its steps by the lengths of the rows, its evaluations, and what it costs."""

from __future__ import annotations

import json
import math

import numpy
import pytest
from conftest import compose

from legroom.cli import brief
from legroom.foresight import run_parts, step_fit
from legroom.foresight.search import present, runner
from legroom.records import record_file
from legroom.records.record import FITS, Estimate
from legroom.report import predicted as predicted_texts

TINY = ["gpu=a100_40gb", "model=bert_tiny", "batch.per_device=4", "data.seq_len=64", "model.positions=64"]


def texts(folder, lengths):
    """A file of classified texts of so many bytes each, as overrides."""
    file = folder / "texts.jsonl"
    rows = [{"text": "w" * length, "label": number % 2} for number, length in enumerate(lengths)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["data=text", f"data.path={file}", "data.task=classification"]


def seconds_of(run, name):
    (part,) = (part for part in run.parts if part["name"] == name)
    return part["seconds"]


def test_the_parts_sum_to_the_run_and_cost_is_hours_times_price_times_gpus(predicted, tmp_path):
    counted = ["train.max_steps=500", "save.every_steps=100", "eval.every_steps=50", "data.eval_samples=32"]
    ranks = ["parallelism=ddp", "parallelism.num_processes=2", "gpu.price_per_hour=1.5"]
    outcome = predicted(*TINY, *counted, *ranks)
    run = outcome.whole_run
    for end in ("seconds", "seconds_low", "seconds_high"):
        assert getattr(run, end) == pytest.approx(sum(part[end] for part in run.parts))
    assert run.seconds_low < run.seconds < run.seconds_high
    assert run.gpus == 2 and run.price_per_hour == 3.0
    for cost, seconds in ((run.cost, run.seconds), (run.cost_low, run.seconds_low), (run.cost_high, run.seconds_high)):
        assert cost == pytest.approx(seconds / 3600 * 1.5 * 2)
    counts = {part["name"]: part["count"] for part in run.parts}
    assert counts["steps"] == 500 and counts["checkpoints"] == 5
    assert counts["evaluations"] == 10  # after each 50 steps but the last, and behind the training
    text = " ".join(brief.brief(outcome, tmp_path).split())
    assert f"Run {predicted_texts.run_text(run)}:" in text
    assert "500 steps" in text and "at 3 an hour" in text
    record_file.to_json(outcome)  # numbers of JSON, and not of numpy


@pytest.mark.parametrize("by, first", [("hours", "short"), ("cost", "cheap")])
def test_fit_orders_by_hours_or_by_cost(by, first):
    """A run that evaluates more takes longer than its steps say; one on a cheaper card costs less."""
    rows = {"short": searched(100.0, 2.0), "cheap": searched(200.0, 1.0)}
    assert min(rows, key=lambda name: rows[name].order(by)) == first


def searched(seconds, price):
    """What fit has found for a card: a run of so many seconds, whose steps take 1 s, at a price per hour."""
    parts = [run_parts.Part("steps", 1, (seconds, seconds, seconds), run_parts.PREDICTED)]
    outcome = compose("recipe=estimate", *TINY).record
    outcome.config["gpu"]["price_per_hour"] = price
    outcome.whole_run = run_parts.sum_of(parts, 1, 1, price)
    outcome.speed.tokens_per_second, outcome.speed.step_seconds_median = 100.0, 1.0
    outcome.estimate = Estimate(True, 1, 2, FITS)
    found = runner.Found(outcome, "")
    return present.Searched(None, None, runner.Result([found], [], 0, 0))


def test_rows_that_nobody_gave_have_no_run(predicted):
    outcome = predicted(*TINY)
    assert outcome.whole_run is None
    assert not outcome.lengths.from_rows and "data.path=" in predicted_texts.lengths_text(outcome.lengths)


def test_rows_that_stand_in_have_no_run_until_its_steps_are_given(predicted):
    outcome = predicted(*TINY, "model=gpt2_tiny", "data=chat")
    assert not outcome.lengths.from_rows and outcome.whole_run is None
    assert predicted(*TINY, "model=gpt2_tiny", "data=chat", "train.max_steps=10").whole_run.steps == 10


def test_steps_are_epochs_times_rows_by_the_batch(predicted, tmp_path):
    rows = texts(tmp_path, [60] * 48)
    outcome = predicted(*TINY, *rows, "train.epochs=3", "accumulation=x2")
    run, held = outcome.whole_run, outcome.lengths
    assert run.rows == held.rows and run.epochs == 3
    assert run.steps == 3 * math.ceil(math.ceil(run.rows / 4) / 2)
    assert held.from_rows and held.longest <= 64


def test_shorter_rows_take_less_time_and_twice_the_steps_twice_as_long(predicted, tmp_path):
    (tmp_path / "long").mkdir()
    (tmp_path / "uneven").mkdir()
    larger = [*TINY, "gpu=t4_16gb", "model.width=1024", "model.heads=16", "model.feed_forward=4096"]
    larger += ["data.seq_len=512", "model.positions=512", "eval.enabled=false"]
    even = texts(tmp_path / "long", [500] * 64)
    uneven = texts(tmp_path / "uneven", [500] * 8 + [20] * 56)
    by_rows = {name: predicted(*larger, *each).whole_run for name, each in {"even": even, "uneven": uneven}.items()}
    assert seconds_of(by_rows["uneven"], "steps") < 0.9 * seconds_of(by_rows["even"], "steps")
    more = predicted(*larger, *uneven, "train.epochs=2").whole_run
    assert more.steps == 2 * by_rows["uneven"].steps
    assert seconds_of(more, "steps") == pytest.approx(2 * seconds_of(by_rows["uneven"], "steps"), rel=0.15)


def test_seconds_of_steps_follow_a_sum_of_passes_positions_and_squares():
    """Of steps whose time is such a sum, a few tell all the others; steps that are all alike tell a shorter one's."""
    chance = numpy.random.default_rng(0)
    lengths = chance.integers(20, 2000, (50, 4)).astype(float)
    work = numpy.stack([numpy.full(50, 4.0), 8 * lengths.sum(1), 8 * (lengths**2).sum(1)], axis=1)
    seconds = work @ numpy.array([2e-3, 3e-6, 1e-9])
    assert step_fit.seconds_of(work, work[:8], seconds[:8]) == pytest.approx(seconds, rel=1e-3)
    alike = numpy.array([[2.0, 1024.0, 2.0**19]])
    assert step_fit.seconds_of(alike / 2, alike, numpy.array([0.3])) == pytest.approx([0.15])


def test_no_part_of_a_time_is_negative():
    """A step that waits for the host takes as long on shorter rows: no shorter row has a negative time."""
    work = numpy.array([[1.0, 100.0, 1e4], [1.0, 200.0, 4e4], [1.0, 400.0, 16e4]])
    seconds = step_fit.seconds_of(numpy.array([[1.0, 1.0, 1.0]]), work, numpy.array([1.0, 1.0, 1.4]))
    assert seconds[0] > 0


@pytest.mark.parametrize(("seconds", "shown"), [(45, "s"), (600, "min"), (3 * 3600, "hours"), (5 * 24 * 3600, "days")])
def test_a_time_is_shown_in_the_unit_that_people_use(seconds, shown):
    interval = predicted_texts.Interval(seconds, seconds / 2, seconds * 2)
    assert predicted_texts.duration_text(interval).endswith(f" {shown}")


def test_a_disk_that_is_slow_makes_the_longest_time():
    low, middle, high = run_parts.disk_seconds(16e9)
    assert low < middle < high and middle == 16.0


def test_memory_of_other_processes_is_missing_on_the_card(predicted):
    alone, beside = (predicted(*TINY, *more) for more in ([], ["gpu.used_gib=2"]))
    assert alone.estimate.margin_bytes - beside.estimate.margin_bytes == 2 * 2**30
    assert "gpu.used_gib" in predicted_texts.margin_text(beside)
