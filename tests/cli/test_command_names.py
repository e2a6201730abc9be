"""`legroom NAME`: the first word names the command, and a wrong one is answered with what to type."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest

from legroom import invocation
from legroom.cli import commands, doctor
from legroom.machine import interpreter


@pytest.fixture
def typed(monkeypatch, capfd):
    """typed(*words) -> (exit code, stdout, stderr) of `legroom` with these words."""
    monkeypatch.setenv(invocation.VARIABLE, "")  # so that it is as before after the test

    def typed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["legroom", *words])
        return commands.main(), *capfd.readouterr()

    return typed


@pytest.mark.parametrize("words", [(), ("-h",), ("--help",), ("help",)])
def test_without_a_name_every_command_is_listed(typed, words):
    code, out, err = typed(*words)
    lines = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert (code, err) == (0, "") and [line[:2] for line in lines] == [["legroom", name] for name in commands.COMMANDS]
    assert out.endswith("Each has --help. legroom train alone trains a tiny model anywhere.\n")


def test_the_doctors_help_says_what_it_does(capsys):
    with pytest.raises(SystemExit):
        doctor.main(["--help"])
    assert "what this machine can do for a training" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, said",
    [
        (["precision=bf16"], "precision=bf16 is no command. Type legroom train precision=bf16 ..."),
        (["-m", "optim=adamw,sgd"], "-m is no command. Type legroom train -m ..."),
        (["--cfg", "job"], "--cfg is no command. Type legroom train --cfg ..."),
        (["estimat"], "'estimat' is no command. Type legroom estimate."),
        (["zzz"], f"'zzz' is no command. There are {', '.join(commands.COMMANDS)}."),
    ],
    ids=str,
)
def test_what_is_no_command_says_what_to_type(typed, words, said):
    assert typed(*words) == (2, "", f"refused: {said}\n")


@pytest.mark.parametrize(
    "words, name, arguments",
    [
        (["fit", "model=gpt2", "--help"], "fit", ["model=gpt2", "--help"]),
        (["--version"], "train", ["--version"]),
    ],
)
def test_what_stands_behind_the_name_is_the_commands(typed, monkeypatch, words, name, arguments):
    asked = []
    monkeypatch.setattr(commands, "run", lambda *given: asked.append(given) or 7)
    assert typed(*words)[0] == 7 and asked == [(name, arguments)]


def test_legroom_estimate_is_recipe_estimate(monkeypatch):
    asked, handlers, module = [], {}, ModuleType("command_of_a_test")
    module.main = asked.append
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(commands.COMMANDS, "estimate", (module.__name__, ""))
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number == signal.SIGHUP else None)
    commands.run("estimate", ["gpu=l4_24gb"])
    assert asked == [["recipe=estimate", "gpu=l4_24gb"]]
    assert set(handlers) == {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}, "nohup has had SIGHUP ignored"
    module.main = lambda _: handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert commands.run("estimate", []) == 130


def test_closed_streams_become_the_null_device(tmp_path):
    code = (
        "import os, socket, sys\n"
        "from legroom.cli import commands\n"
        "[os.close(number) for number in (0, 1, 2)]\n"
        "commands._open_streams()\n"
        "print('lost', file=sys.stderr), print('lost', flush=True)\n"
        "found = [sys.stdin.read(), sys.stdout.fileno(), sys.stderr.fileno(), socket.socket().fileno() > 2]\n"
        f"open({str(tmp_path / 'found')!r}, 'w').write(repr(found))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": interpreter.python_path()})
    assert (tmp_path / "found").read_text() == "['', 1, 2, True]"
