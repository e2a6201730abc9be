"""tests/tools/torture.py: its cases are as many as docs/results/reliability.md says, and its parts run."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from conftest import ROOT

TORTURE = [sys.executable, str(ROOT / "tests" / "tools" / "torture.py")]


def test_the_cases_are_many_and_each_has_a_name_of_its_own():
    done = subprocess.run([*TORTURE, "--list"], capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()
    assert len(set(names)) == len(names)
    counts = Counter(name.split(":")[0] for name in names)
    kills = [name for name in names if name.startswith("kills: ") and ": kill " in name]
    assert counts["checkpoints"] >= 24 and counts["inputs"] >= 22 and counts["records"] >= 15 and len(kills) >= 40


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
