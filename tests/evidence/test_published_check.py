"""Published runs on the emulated GPU: what is kept of them, and the page that is made of it."""

from __future__ import annotations

from pathlib import Path

import published_check
import published_check_sets
import pytest

ROWS = list(published_check.kept().values())
WITHOUT_FOLDER = ("fms", "xmem")  # sets whose published figures stand in this repository


@pytest.mark.parametrize("name", WITHOUT_FOLDER)
def test_kept_runs_have_the_published_figures_of_the_list(name):
    listed = {run.name: run.published_bytes for run in published_check_sets.SETS[name].runs(Path())}
    kept = {row["run"]: row["published_bytes"] for row in ROWS if row["set"] == name}
    assert kept
    assert kept == {run: listed[run] for run in kept}


def test_what_is_far_apart_is_explained():
    for row in ROWS:
        published = published_check_sets.SETS[row["set"]]
        (error,) = published_check.errors([row], published.figures[0])
        if abs(error) > published_check.APART:
            assert any(row["run"].startswith(name) for name in published.explained), row["run"]


def test_the_page_is_that_of_the_kept_runs(tmp_path, monkeypatch):
    page = published_check.PAGE.read_text()
    monkeypatch.setattr(published_check, "PAGE", tmp_path / "page.md")
    published_check.write_page()
    assert published_check.PAGE.read_text() == page
