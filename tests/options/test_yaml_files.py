"""YAML files of a folder that --config-dir names."""

from __future__ import annotations

import os

import pytest

from legroom.options import yaml_files

LEVELS = "\n".join(["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)])


DEEP = "a: " + "[" * 10**5 + "]" * 10**5


@pytest.mark.parametrize(
    "text, said",
    [
        (LEVELS, "aliases"),
        ("a: &a [*a]", "aliases"),
        (f"name: evil\n{LEVELS}", "aliases"),
        (DEEP, "values are nested too deep"),
    ],
    ids=["levels", "itself", "more", "deep"],
)
def test_yaml_bombs_are_refused(command, tmp_path, text, said):
    (tmp_path / "menus/optim").mkdir(parents=True)
    (tmp_path / "menus/optim/evil.yaml").write_text(text)
    ended = command("optim=evil", "--config-dir", str(tmp_path / "menus"), fork_server=None)
    assert ended.code == 2 and len(ended.err.splitlines()) == 1
    assert f"evil.yaml: its {said}" in ended.err


@pytest.mark.slow
def test_other_files_are_left_to_hydra(tmp_path):
    (tmp_path / "fine.yaml").write_text("a: &a {b: 1}\nc: *a\nd: {<<: *a}\n")
    (tmp_path / "broken.yaml").write_text("a: [")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert yaml_files.problems(tmp_path) == []
