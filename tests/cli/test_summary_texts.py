"""Whole summaries of made-up records, short and with every figure, compared with texts beside this file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.made_up_records import job

from legroom.cli import brief, summary
from legroom.records.record import Memory, Record
from legroom.units import GIB, MIB


def made(*typed: str, **parts) -> Record:
    """A record of one process with these parts; its losses fall."""
    found = job(*typed, overrides=typed)
    found.config["parallelism"] |= {"num_processes": 1, "replicas": None}
    found.environment |= {"device_name": "a CPU", "device_memory_bytes": 16 * GIB}
    for name, part in parts.items():
        setattr(found, name, part)
    return found


@pytest.mark.parametrize(
    "name, value, parameters, shown",
    [
        ("fits", True, None, ""),
        ("losses", [1.0], None, ""),
        ("peak_phase", "step", None, "step"),
        ("final_loss", float("inf"), None, "inf"),
        ("final_loss", 0.5, None, "0.5000"),
        ("steps", 1234, None, "1,234"),
        ("optimizer_bytes", 3 * MIB, None, "3.0 MiB"),
        ("host_bytes", 3 * MIB, MIB, "3.0 MiB"),
        ("mfu", 0.256, None, "25.6%"),
        ("accuracy", 0.5, None, "50.0%"),
        ("padding_share", 0.125, None, "12.5%"),
        ("step_seconds", 0.0123, None, "12.30 ms"),
        ("seconds", 1234.5, None, "1,234.5 s"),
    ],
)
def test_a_figure_is_shown_by_the_unit_in_its_name(name, value, parameters, shown):
    assert summary._figure(name, value, parameters) == shown


@pytest.mark.parametrize(
    "used, context, weights, shown",
    [(5, 3, 1, True), (None, 3, 1, False), (5, None, 1, False), (5, 3, None, False)],
)
def test_the_three_lines_of_a_gpus_memory_need_all_their_figures(used, context, weights, shown):
    memory = Memory(device_used_bytes=used, context_bytes=context, weights_bytes=weights)
    assert bool(list(summary._device_rows(memory))) is shown


@pytest.mark.parametrize("columns, longest", [("10", 39), ("41", 41), ("99", 99), ("300", 99)])
def test_a_summary_is_at_least_40_and_at_most_100_columns_wide(monkeypatch, columns, longest):
    monkeypatch.setenv("COLUMNS", columns)
    lines = brief._filled("x " * 200, "", "").splitlines()
    assert max(map(len, lines)) == longest


def test_a_long_word_and_one_with_hyphens_stay_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = f"{'a' * 50} some-words-with-hyphens and-some-more-of-them"
    assert sorted(brief._filled(text, "", "  ").split()) == sorted(text.split())


def test_the_shorter_of_two_names_of_a_folder_is_shown(monkeypatch, tmp_path):
    deep = tmp_path / "a" / "b" / "c" / "d" / "e" / "f" / "g" / "h" / "i"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert brief.shorter(deep / "run") == "run"
    assert brief.shorter(Path(os.sep, "x")) == f"{os.sep}x"


@pytest.mark.parametrize(
    "losses, kept, said",
    [
        ([1.0] * 20, True, "did not fall"),  # of no noise at all, and not risen
        ([100.0, 100.0, 99.0], True, None),  # by a hundredth
        ([1.0, 1.4] * 5 + [1.2, 1.64] * 5, False, "rose"),  # by a little more than twice the noise
        ([0.5, 1.0, 9.0, 9.0, 9.0, 9.0, 0.6, 0.8], True, None),  # two of eight are a quarter
    ],
    ids=range(4),
)
def test_how_the_loss_went_is_judged_by_its_quarters(losses, kept, said):
    found = made("data=text", "data.path=x.txt")
    found.training.losses = losses
    lines = brief._not_learned(found, kept)
    assert bool(lines) is (said is not None) and (said or "") in " ".join(lines)
