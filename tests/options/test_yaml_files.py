"""YAML files of a folder that --config-dir names."""

from __future__ import annotations

import os

import pytest

from legroom.options import yaml_files

LEVELS = "\n".join(["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)])


@pytest.mark.parametrize("text", [LEVELS, "a: &a [*a]", f"name: evil\n{LEVELS}"], ids=["levels", "itself", "more"])
def test_aliases_that_fill_the_memory_are_refused_before_hydra_loads_them(command, tmp_path, text):
    (tmp_path / "menus/optim").mkdir(parents=True)
    (tmp_path / "menus/optim/evil.yaml").write_text(text)
    ended = command("optim=evil", "--config-dir", str(tmp_path / "menus"), fork_server=None)
    assert ended.code == 2 and len(ended.err.splitlines()) == 1
    assert "evil.yaml: its aliases" in ended.err


def test_other_files_are_left_to_hydra(tmp_path):
    (tmp_path / "fine.yaml").write_text("a: &a {b: 1}\nc: *a\nd: {<<: *a}\n")
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "deep.yaml").write_text("[" * 10**5)
    os.mkfifo(tmp_path / "pipe.yaml")
    assert yaml_files.problems(tmp_path) == []
