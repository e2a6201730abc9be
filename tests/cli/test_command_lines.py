"""A command line before Hydra reads it, what ends a command with which code, and the texts of --help."""

from __future__ import annotations

from pathlib import Path

import pytest

from legroom.cli import argv

# --- the words ----------------------------------------------------------------------------------------------------


def test_a_sweep_without_a_folder_gets_one_by_the_time():
    made = argv.expand_argv(["-m", "a=1,2"])
    assert made[0] == "-m" and made[2] == "a=1,2" and len(made) == 3
    assert made[1].startswith("hydra.sweep.dir=outputs/20") and "/sweep-" in made[1]


@pytest.mark.parametrize(
    "words, folder",
    [
        (["-m", "hydra.sweep.dir=x"], "x"),
        (["--multirun", "hydra.sweep.dir='x y'", "a=1"], "x y"),
        (["-m", "hydra.sweep.dir=x", 'hydra.sweep.dir="y"'], "y"),
        (["hydra.sweep.dir=x"], None),
        (["-m"], None),
    ],
    ids=range(5),
)
def test_the_folder_of_a_sweep_is_the_last_that_is_named(words, folder):
    assert argv.sweep_folder(words) == (folder and Path(folder).absolute())
