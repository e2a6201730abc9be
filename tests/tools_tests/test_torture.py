"""tests/tools/torture.py: its cases have names of their own, and its parts run."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import ROOT

TORTURE = [sys.executable, str(ROOT / "tests" / "tools" / "torture.py")]


def test_each_case_has_a_name_of_its_own():
    done = subprocess.run([*TORTURE, "--list"], capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_some_cases_run(tmp_path):
    page = tmp_path / "page.md"
    done = subprocess.run(
        [*TORTURE, "--part", "checkpoints", "inputs", "--case", "as weights", "--page", str(page)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a pickle as weights" in page.read_text()
