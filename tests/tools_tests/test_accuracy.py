"""The accuracy of predictions: the list that was written first, and the page that says what came of it."""

from __future__ import annotations

import csv
import time

import accuracy
import accuracy_page
import pytest
from conftest import compose

from legroom.records.record import Memory, Record, Speed

GIB = 2**30


def configurations() -> list[list[str]]:
    return accuracy_page.read(accuracy.CONFIGURATIONS)


@pytest.mark.parametrize(
    "words",
    [pytest.param(each, marks=[pytest.mark.slow] * bool(i % 4)) for i, each in enumerate(configurations())],
    ids=" ".join,
)
def test_every_configuration_of_the_list_runs_on_a_large_gpu(words, pretend_gpu):
    pretend_gpu((9, 0), "NVIDIA H100 80GB HBM3")
    assert compose(*accuracy.JOB, *words).problems == []


def test_the_list_covers_what_it_says():
    rows = [dict(word.split("=", 1) for word in words) for words in configurations()]
    assert len(rows) >= 40 and len({tuple(words) for words in configurations()}) == len(rows)
    for key, least in (("model", 3), ("precision", 4), ("optim", 5), ("data.seq_len", 3), ("batch.per_device", 3)):
        values = [row[key] for row in rows]
        assert len(set(values)) >= least and all(values.count(value) >= 2 for value in set(values)), key
    assert sum("accumulation" in row for row in rows) >= 5 and sum("checkpointing" in row for row in rows) >= 5


def found(status="ok", allocated=10 * GIB, reserved=11 * GIB, device=12 * GIB, speed=5.0, **memory) -> Record:
    made = Record("accelerate", [], {}, "key", {"versions": {"torch": "2.13"}}, status)
    made.memory = Memory(
        peak_allocated_bytes=allocated, peak_reserved_bytes=reserved, device_used_bytes=device, **memory
    )
    made.speed = Speed(samples_per_second=speed)
    return made


def row(word="a", measured=None, capped=None, **predicted) -> accuracy_page.Row:
    return accuracy_page.Row([word], found(**predicted), [measured or found()], capped)


def test_the_page_has_each_error_with_its_sign():
    text = accuracy_page.page([row(allocated=9 * GIB, speed=6.0), row("b", reserved=11.11 * GIB)], "H100")
    first, second = [line for line in text.splitlines() if line.startswith(("| a |", "| b |"))]
    assert "| 10240 | 9216 | -10.00% |" in first and "| 5.00 | 6.00 | +20.00% |" in first
    assert "| 11264 | 11377 | +1.00% |" in second
    assert "| allocated | 2 | 5.00% | 1% | -10.00% | 3% | -5.00% |" in text
    assert "| tensor |" not in text  # nothing to compare


def test_the_page_counts_what_was_capped_and_what_is_missing():
    rows = [
        row(capped=found()),
        row(capped=found("oom")),
        accuracy_page.Row(["c"]),
        row("d", measured=found("refused")),
    ]
    text = accuracy_page.page(rows, "H100")
    assert "2 of 4 configurations measured" in text and "1 of 2 finished" in text
    assert "| c | not run |" in text and "| d | refused |" in text


def test_of_several_passes_the_median_counts():
    runs = [found(speed=3.0), found("failed"), found(speed=1.0), found(speed=2.0)]
    several = accuracy_page.Row(["a"], found(speed=4.0), runs)
    assert several.figures("speed") == (4.0, 2.0)
    assert several.measured is runs[0] and accuracy_page.Row(["a"], None, [runs[1]]).measured is runs[1]
    text = accuracy_page.page([several], "CPU")
    assert "measured 4 times" in text and "at most 200.0%" in text and "| 2.00 | 4.00 | +100.00% |" in text


def test_the_speeds_are_ranked():
    rows = [row(measured=found(speed=measured), speed=predicted) for measured, predicted in ((1, 10), (2, 30), (3, 20))]
    assert "Rank correlation of the speeds: 0.500" in accuracy_page.page(rows, "H100")


def test_a_run_that_failed_has_no_figures():
    assert accuracy_page.figure(found("failed"), "allocated") is None and accuracy_page.figure(None, "speed") is None
    assert accuracy_page.figure(found("oom"), "reserved") == 11 * GIB  # an estimate tells what it would take


def test_a_list_has_a_configuration_a_line(tmp_path):
    (tmp_path / "list").write_text("# why\n\nmodel=gpt2 'a.b=[1, 2]'\nmodel=bert_tiny\n")
    assert accuracy_page.read(tmp_path / "list") == [["model=gpt2", "a.b=[1, 2]"], ["model=bert_tiny"]]


@pytest.mark.slow
def test_without_a_gpu_the_fake_steps_ledger_is_compared_with_the_real_ones(tmp_path, capfd):
    (tmp_path / "list").write_text(
        "model=bert_tiny optim=adamw\nmodel=gpt2_tiny precision=bf16 optim=sgd accumulation=x2\n"
        "model=bert_tiny precision=fp16\n"
    )
    small = [
        "device=cpu",
        "model.width=32",
        "model.heads=2",
        "model.layers=1",
        "model.vocab=512",
        "data.samples=8",
        "batch.per_device=2",
        "data.seq_len=32",
        "train.max_steps=2",
    ]

    def run(seconds: float = 540, records=tmp_path / "records") -> int:
        comparison = accuracy.Comparison(tmp_path / "list", small, records, time.monotonic() + seconds)
        return accuracy.run(comparison, tmp_path)

    assert run() == 1  # one of them was refused
    assert "| tensor | 2 |" in (tmp_path / "accuracy_cpu.md").read_text()
    with open(tmp_path / "accuracy_cpu.csv") as file:
        rows = list(csv.DictReader(file))
    assert [line["measured_status"] for line in rows] == ["ok", "ok", "refused"]
    assert all(abs(float(line["tensor_error"])) < 0.01 for line in rows[:2])
    capfd.readouterr()
    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("records/*/result.json")}
    assert len(made) == 4
    run()
    assert made == {
        path: path.stat().st_mtime_ns for path in tmp_path.glob("records/*/result.json")
    }  # nothing ran again
    assert run(seconds=0, records=tmp_path / "none") == 1
    assert "0 of 3 configurations measured" in (tmp_path / "accuracy_cpu.md").read_text()


def test_the_page_has_the_rank_correlation_within_each_model():
    speeds = {"model=a": ((1.0, 2.0), (3.0, 4.0)), "model=b": ((1.0, 4.0), (3.0, 2.0))}
    rows = [
        accuracy_page.Row([model, f"batch={measured}"], found(speed=predicted), [found(speed=measured)])
        for model, pairs in speeds.items()
        for predicted, measured in pairs
    ]
    text = accuracy_page.page(rows, "CPU")
    assert "Within model=a: 1.000." in text and "Within model=b: -1.000." in text


def test_the_cpu_list_has_forty_configurations_that_compose():
    rows = accuracy_page.read(accuracy.CONFIGURATIONS.with_name("cpu_configurations.txt"))
    assert len({tuple(words) for words in rows}) == len(rows) == 40
    assert len({word for words in rows for word in words if word.startswith("model=")}) == 3
    for words in rows[::9]:
        assert compose(*accuracy.JOB, *words, "device=cpu").problems == []
