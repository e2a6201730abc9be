"""A finished job as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_records import OOM, job

from legroom.cli import argv, brief, summary, sweep
from legroom.records.record import Error, Estimate, Memory
from legroom.units import MIB


def ended(status: str = "ok", error: Error | None = None, **parts):
    """A made-up record of one process, with these parts."""
    record = job(status=status, error=error)
    record.config["parallelism"] |= {"num_processes": 1, "replicas": 1}
    for name, part in parts.items():
        setattr(record, name, part)
    return record


def test_job_line_leaves_refusals_to_the_table():
    line = sweep.job_line(ended("refused", Error("load", "Refusal", "it needs a GPU.")), 1, ["a=1"], False)
    assert line.split() == ["1", "refused", "a=1"]
    assert "out of memory" in sweep.job_line(ended("oom", OOM), 1, ["a=1"], False)


def test_job_line_of_an_estimate_that_does_not_fit():
    record = ended("oom", Error("backward", "OutOfMemoryError", "it would not fit"))
    record.recipe, record.estimate = "estimate", Estimate(False, -50 * MIB, 50 * MIB)
    assert sweep.job_line(record, 1, ["gpu=t4_16gb"], False).split()[:5] == ["1", "does", "not", "fit", "gpu=t4_16gb"]


def test_time_after_a_resume():
    record = ended(memory=Memory())
    assert "2 steps" in brief.brief(record, Path("x"), verbose=True)
    assert ["training.samples", "16"] in [
        line.split() for line in brief.brief(record, Path("x"), verbose=True).splitlines()
    ]
    record.training.resumed_from_step = 1
    assert "1 steps since step 1" in brief.brief(record, Path("x"), verbose=True)


def test_glob_of_gpus_leaves_auto_out(pretend_gpu):
    typed = ["recipe=estimate", "gpu=glob(*)"]
    assert argv.leave_auto_out(typed) == ["recipe=estimate", "gpu=glob(*,exclude=auto)"]
    assert argv.leave_auto_out(["gpu=glob(*)"]) == ["gpu=glob(*)"]
    pretend_gpu((8, 0))
    assert argv.leave_auto_out(typed) == typed


def test_explanation_of_an_estimate():
    tensors = [{"bytes": 3 * MIB, "part": part, "made_by": "mlp", "count": n} for n, part in ((2, "a"), (1, "b"))]
    levers = [{"words": "x", "refused": "it needs a GPU"}]
    rows = list(summary.explanation(Estimate(True, 1, 2, largest=tensors, levers=levers)))
    assert rows == [
        ("  largest at the peak", "3 MiB", "a, mlp, 2 of them"),
        ("", "3 MiB", "b, mlp"),
        ("  levers, each alone", "", "not with x: it needs a GPU"),
    ]


@pytest.mark.parametrize("step, evaluation, said", [(6, 7, "7 MiB"), (6, 6, None), (None, 7, "7 MiB"), (6, None, None)])
def test_evaluation_that_needs_more_than_a_step(step, evaluation, said):
    needs = Estimate(True, 1, 2, evaluation_reserved_bytes=evaluation and evaluation * MIB)
    rows = list(summary.evaluation(needs, Memory(peak_reserved_bytes=step and step * MIB)))
    assert rows == ([("CUDA reserved, evaluation", said, "peak")] if said else [])


@pytest.mark.parametrize("releases, said", [(None, ""), (0, ""), (3, ", cached memory given back 3 times")])
def test_uneven_lengths(releases, said):
    shown = {"shown_reserved_bytes": 5 * MIB, "expandable_reserved_bytes": 4 * MIB, "lengths_steps": 9}
    ((_, size, note),) = summary.lengths(Estimate(True, 1, 2, releases=releases, **shown))
    assert (
        size == "5 MiB" and note == f"after 9 steps on rows of different lengths{said}; 4 MiB with expandable_segments"
    )
