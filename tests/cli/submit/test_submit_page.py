"""docs/clusters.md shows the files as the commands beside them write them."""

from __future__ import annotations

import re
import shlex

import pytest
from conftest import ROOT

from legroom import invocation
from legroom.cli import commands
from legroom.cli.submit import command

PAGE = (ROOT / "docs" / "clusters.md").read_text()
SHOWN = re.findall(
    r"^```\n(python scripts/submit\.py [^\n]+)\n```\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
)


def test_every_scheduler_is_shown_once():
    assert sorted(shlex.split(line)[2] for line, _ in SHOWN) == sorted(command.SCHEDULERS)


@pytest.mark.slow
@pytest.mark.parametrize("line, shown", SHOWN, ids=lambda text: text.split()[2] if text.startswith("python") else "")
def test_the_page_shows_what_the_command_writes(line, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(invocation.VARIABLE, "python ")
    assert commands.answered(command.main, shlex.split(line)[2:]) == 0
    [file] = tmp_path.iterdir()
    assert file.read_text() == shown
