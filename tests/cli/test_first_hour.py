"""The README's way from a clone to a model that answers: at most four commands, run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT, compose

BLOCK = re.search(r"^## Start\n.*?^```\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
TAUGHT = "Small matrices beside frozen weights."


def commands() -> list[str]:
    """The lines of the first block under Start, without what stands behind a #."""
    assert BLOCK is not None
    return [line.partition(" #")[0].strip() for line in BLOCK[1].replace("\\\n", " ").splitlines() if line.strip()]


def arguments(line: str) -> list[str]:
    """A command with this interpreter in place of the environment that `make` would build."""
    words = shlex.split(line)
    if words[0] == "make":  # what it would run last
        said = subprocess.run(
            ["make", "-n", "--no-print-directory", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True
        )
        words = shlex.split(said.stdout.splitlines()[-1])
    assert words[0] == ".venv/bin/python"
    return [sys.executable, *words[1:]]


def keys(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)


def test_readme_commands_follow_each_other():
    first, second, last = lines = commands()
    assert len(lines) <= 4 and first.startswith("make train ")
    run = keys(keys(first)["ARGS"])["hydra.run.dir"]
    assert keys(second)["model.pretrained"] == f"{run}/model"
    assert shlex.split(last)[1:] == ["scripts/chat.py", keys(second)["hydra.run.dir"]]
    assert (ROOT / keys(second)["data.path"]).is_file() and TAUGHT in (ROOT / keys(second)["data.path"]).read_text()
    assert not compose(*(word for word in arguments(first) if "=" in word and not word.startswith("hydra."))).problems


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_from_a_clone_to_an_answer_in_the_commands_of_the_readme(tmp_path):
    for name in ("train.py", "scripts", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    said = ""
    for line in commands():
        asked = "What is LoRA?\n" if "chat.py" in line else None
        ended = subprocess.run(arguments(line), cwd=tmp_path, input=asked, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
        said = ended.stdout.strip()
    assert said == TAUGHT
