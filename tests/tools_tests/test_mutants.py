"""tests/tools/mutants.py: what it keeps, and when a change counts as noticed."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from typing import Any

import mutant_points
import mutants
import pytest


def test_the_tests_of_other_changes_are_not_those_of_an_earlier_run(tmp_path, monkeypatch):
    """Another seed draws others, and a file that has changed has its points elsewhere."""
    root, folder, (file,) = tmp_path / "root", tmp_path / "cache", ["recipes/legroom/one/code.py"]
    (root / file).parent.mkdir(parents=True)
    folder.mkdir()
    (root / file).write_text("x = 1 + 2\n")

    def run_tests(*_, **__):
        (folder / "seconds").write_text("test\t1\n")
        (folder / "hits").write_text("0\ttest\n")

    monkeypatch.setattr(subprocess, "run", run_tests)
    points = mutant_points.every_point(root, ["one"])
    for drawn in (points[:1], points[1:2]):
        assert mutant_points.tests_by_mutant(drawn, root, folder) == {drawn[0].name: {"test": 1.0}}
    (root / file).write_text("\nx = 1 + 2\n")
    (moved, *_) = mutant_points.every_point(root, ["one"])
    assert mutant_points.tests_by_mutant([moved], root, folder) == {moved.name: {"test": 1.0}}


@pytest.mark.slow
def test_a_change_is_not_noticed_where_every_test_is_left_out(tmp_path):
    """Its one test fails without the change, too."""
    (tmp_path / "code.py").write_text("x = 1\n")
    (tmp_path / "test_code.py").write_text("def test_x():\n    assert False\n")
    mutant = mutant_points.Mutant("code.py", 1, 4, 5, "1", "2")
    assert mutants.noticed(mutant, tmp_path, [["test_code.py"]]) == ""


def test_a_constant_of_a_module_is_tried_against_all_that_executes_its_functions(tmp_path, monkeypatch):
    """Not against the one test that happened to import the module first."""
    source = b"LIMIT = 80\n\n\ndef hot(celsius):\n    return celsius >= LIMIT\n"
    points = mutant_points.Points("code.py", source)
    points.visit(ast.parse(source))
    hits: list[int] = []
    monkeypatch.setitem(sys.modules, "mutant_hits", types.SimpleNamespace(hit=hits.append))
    module: dict[str, Any] = {}
    exec(mutant_points.Instrumented(source, dict(enumerate(points.found))).text, module)
    assert [mutant.new for mutant in points.found] == ["81", ">"] and not hits
    assert module["hot"](80) and sorted(hits) == [0, 1]
