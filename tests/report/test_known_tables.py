"""Whole tables of made-up sweeps, as they stand in the files and on a terminal, compared with the texts kept here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from made_up_tables import SWEEPS

from legroom.report import report, screen_table
from legroom.report.screen_table import screen_text


@pytest.mark.parametrize("terminal, width", [(False, 160), (True, 91)])
def test_a_table_is_as_wide_as_the_terminal(terminal, width, monkeypatch):
    asked = []
    monkeypatch.setattr(screen_table, "printed", lambda width, *_: asked.append(width) or "")
    monkeypatch.setattr(screen_table.sys, "stdout", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setattr(screen_table.shutil, "get_terminal_size", lambda: SimpleNamespace(columns=91))
    screen_text(report.compare(SWEEPS["alone"]()))
    assert asked == [width]


@pytest.mark.parametrize("width, left_out", [(41, []), (40, ["a"]), (26, ["a"]), (25, ["a", "time s"])])
def test_columns_are_left_out_where_they_do_not_fit_by_a_character(width, left_out, monkeypatch):
    """Three columns of thirteen, nine and fifteen characters, with two spaces between."""
    monkeypatch.setitem(screen_table.LISTS, "columns_for_width", ("a", "time s"))
    cells = {"a": ["x" * 13], "time s": ["y" * 9], "status": ["z" * 15]}
    kept, left = screen_table._fit(cells, report.compare(SWEEPS["alone"]()), width)
    assert left == left_out and list(kept) == [heading for heading in cells if heading not in left_out]
