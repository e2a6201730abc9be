"""tests/tools/parallelism_matrix.py: rows of it, and no cell of its page says no without a reason."""

from __future__ import annotations

import re

import parallelism_matrix
import pytest


@pytest.fixture(scope="module")
def matrix(tmp_path_factory, fork_server):
    return parallelism_matrix.Matrix(tmp_path_factory.mktemp("matrix"), fork_server)


@pytest.mark.slow
def test_weights_in_four_bits_shard_resume_and_count_as_predicted(matrix):
    row = matrix.row("fsdp parallelism.num_processes=2 adapter=qlora", "accelerate")
    assert all(cell.startswith("yes") for cell in row.cells), row


def test_what_is_refused_says_so_in_each_cell(matrix):
    row = matrix.row("dp", "trainer")
    assert all(cell.startswith("refused: ") for cell in row.cells[:5]) and row.cells[5] == "yes"
    text = parallelism_matrix.page([row])
    assert text.count("refused (1)") == 4 and "1. parallelism=dp needs a GPU" in text


def test_two_trainings_that_differ_are_told_apart():
    assert parallelism_matrix.apart([1.0, 2.0], [1.0, 2.0]) == "yes (0e+00)"
    assert parallelism_matrix.apart([1.0, 2.0], [1.0, 2.1]).startswith("no")


def test_every_cell_of_the_page_is_yes_or_has_its_reason():
    text = parallelism_matrix.PAGE.read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")][1:]
    assert [row[0].strip("`") for row in rows[::2]] == list(parallelism_matrix.MODES)
    notes = set(re.findall(r"^(\d+)\. ", text, re.MULTILINE))
    for row in rows:
        for cell in row[2:]:
            assert cell.startswith("yes") or set(re.findall(r"^(?:refused|no)\b.* \((\d+)\)$", cell)) & notes, row
