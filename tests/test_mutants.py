"""scripts/mutants.py: what it keeps, and when a change counts as noticed."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT


@pytest.fixture
def scripts(monkeypatch):
    """The modules mutants and mutant_points."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import mutant_points
    import mutants

    yield SimpleNamespace(mutants=mutants, points=mutant_points)
    for name in ("mutants", "mutant_points"):
        sys.modules.pop(name, None)


def test_the_tests_of_other_changes_are_not_those_of_an_earlier_run(scripts, tmp_path, monkeypatch):
    """Another seed draws others, and a file that has changed has its points elsewhere."""
    root, folder, (file,) = tmp_path / "root", tmp_path / "cache", ["recipes/one/code.py"]
    (root / file).parent.mkdir(parents=True)
    folder.mkdir()
    (root / file).write_text("x = 1 + 2\n")

    def run_tests(*_, **__):
        (folder / "seconds").write_text("test\t1\n")
        (folder / "hits").write_text("0\ttest\n")

    monkeypatch.setattr(subprocess, "run", run_tests)
    points = scripts.points.every_point(root, ["one"])
    for drawn in (points[:1], points[1:2]):
        assert scripts.points.tests_by_mutant(drawn, root, folder) == {drawn[0].name: {"test": 1.0}}
    (root / file).write_text("\nx = 1 + 2\n")
    (moved, *_) = scripts.points.every_point(root, ["one"])
    assert scripts.points.tests_by_mutant([moved], root, folder) == {moved.name: {"test": 1.0}}


def test_a_change_is_not_noticed_where_every_test_is_left_out(scripts, tmp_path):
    """Its one test fails without the change, too."""
    (tmp_path / "code.py").write_text("x = 1\n")
    (tmp_path / "test_code.py").write_text("def test_x():\n    assert False\n")
    mutant = scripts.points.Mutant("code.py", 1, 4, 5, "1", "2")
    assert scripts.mutants.noticed(mutant, tmp_path, [["test_code.py"]]) == ""
