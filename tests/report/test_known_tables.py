"""Whole tables of made-up sweeps, as they stand in the files and on a terminal, compared with the texts kept here."""

from __future__ import annotations

import csv
import io
from types import SimpleNamespace

import pytest
from known_values import known
from made_up_tables import SWEEPS

from legroom.report import report, screen_table
from legroom.report.files import csv_text
from legroom.report.screen_table import screen_text
from legroom.report.tables import markdown


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweeps_table_is_as_it_was(name, file_regression):
    made = report.compare(SWEEPS[name]())
    screens = [f"--- {width} characters\n{screen_text(made, width)}" for width in (170, 110, 70)]
    file_regression.check("\n\n".join([markdown(made, ["bars.png"]), *screens]) + "\n", extension=".txt")


@pytest.mark.parametrize("name", ["measured", "predicted"])
def test_a_sweeps_csv_is_as_it_was(name, data_regression):
    lines = csv.DictReader(io.StringIO(csv_text(report.compare(SWEEPS[name]()))))
    data_regression.check([{key: text for key, text in line.items() if text} for line in lines])


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweeps_rows_are_as_they_were(name, data_regression):
    made = report.compare(SWEEPS[name]())
    rows = [
        {
            "name": row.name,
            "runs": [run.config_key for run in row.runs],
            "state": [row.status, row.done, row.estimate, row.waits, row.jobs_at_once, len(row.counted)],
            "fit": row.fit and row.fit.verdict,
            "notes": row.notes,
            "memory": made.memory(row),
            "speed": made.speed(row),
            "published": row.published,
        }
        for row in made.rows
    ]
    values = {
        "keys": made.keys,
        "common": made.common,
        "memory": [made.memory_name, made.memory_meaning, *made.unit],
        "baseline": made.baseline and made.baseline.name,
        "of_gpus": made.of_gpus,
        "rows": rows,
    }
    data_regression.check(known(values))


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
