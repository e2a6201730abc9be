"""The comparison of compiled steps: what is measured is a real compiled step."""

from __future__ import annotations

import shutil

import compiled_memory
import pytest


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a compiler")
def test_a_compiled_step_takes_what_was_predicted():
    row = compiled_memory.compare("model=llama_tiny model.dropout=0.1")
    assert not row.note and row.compiled < row.written
    assert row.predicted == pytest.approx(row.compiled, rel=0.05)


def test_the_page_has_the_error_or_why_there_is_none():
    rows = [compiled_memory.Row("a", 4 << 20, 2 << 20, 3 << 20), compiled_memory.Row("b", 1, 1, 1, "it failed")]
    lines = compiled_memory.page(rows).splitlines()
    assert lines[2] == "| a | 4.0 | 2.0 | 3.0 | +50.0% |" and lines[3].endswith("| it failed |")
