"""A package that another one's installation has exchanged is named before anything runs."""

from __future__ import annotations

import importlib.util
from importlib import metadata

import pytest

from legroom.cli import commands
from legroom.machine import requirements


@pytest.mark.parametrize(
    "installed, said", [("4.57.1", "transformers 4.57.1 is installed"), (None, "is not installed")]
)
@pytest.mark.parametrize("command", [["check", "train.py"], ["train"], ["chat", "run"]])
def test_a_package_that_is_too_old_is_refused_by_every_command(monkeypatch, capsys, installed, said, command):
    version = metadata.version

    def known(name):
        if name != "transformers":
            return version(name)
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", known)
    if installed is None:
        found = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else found(name))
    assert commands.run(command[0], command[1:]) == 2
    refused = capsys.readouterr().err
    assert said in refused and "pip install 'transformers>=5" in refused and refused.count("refused: ") == 1


def test_a_build_without_a_version_is_taken_as_it_is(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda _: "0+unknown")
    assert requirements.missing() == []


def test_what_was_installed_says_the_same_as_the_checkout(monkeypatch):
    optional = ['wandb>=0.1; extra == "track"', "peft>=0.19; extra == '8bit'", 'pytest; extra == "dev"']
    monkeypatch.setattr(metadata, "requires", lambda _: ["torch>=2.11,<9", *optional])
    monkeypatch.setattr(metadata, "metadata", lambda _: {"Requires-Python": ">=3.11"})
    assert requirements.listed(None) == (
        "3.11",
        [
            (None, "torch", "2.11", "torch>=2.11,<9"),
            ("track", "wandb", "0.1", "wandb>=0.1"),
            ("8bit", "peft", "0.19", "peft>=0.19"),
        ],
    )
    monkeypatch.setattr(metadata, "requires", lambda _: None)
    assert requirements.listed(None) == ("3.11", []), "a package that needs none says nothing"


def test_what_the_tests_run_with_is_recent_enough():
    assert requirements.missing() == []
