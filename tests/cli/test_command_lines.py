"""A command line before Hydra reads it, what ends a command with which code, and the texts of --help."""

from __future__ import annotations

import contextlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from support.made_up_records import CONF

from legroom import invocation
from legroom.cli import argv, commands, console, entry_point, help_text, train
from legroom.cli import sweep as sweeps
from legroom.ranks.rank_info import RankInfo

ONLY_RANK, OTHER_RANK = RankInfo(), RankInfo(rank=1, world_size=2)

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


# --- the whole command --------------------------------------------------------------------------------------------


@pytest.fixture
def ended(monkeypatch, capsys):
    """ended(words, raised, statuses, **replaced) -> the exit code and what is printed, where Hydra does this."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(console, "VERBOSE", False)

    def ended(words: str, raised: Any = None, statuses=(), rank=ONLY_RANK, **replaced: Any) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def hydra_main(conf, sweep, found):
            def main():
                seen["typed"] = [word.split("outputs/")[0] for word in sys.argv[1:]]
                found.extend(statuses)
                if raised is not None:
                    raise raised

            return main

        monkeypatch.setattr(entry_point, "_hydra_main", hydra_main)
        monkeypatch.setattr(entry_point, "current_rank", lambda: rank)
        monkeypatch.setattr(console.rank_info, "current_rank", lambda: RankInfo())
        monkeypatch.setattr(entry_point.submitit_jobs, "followed", lambda *_: contextlib.nullcontext())
        monkeypatch.setattr(entry_point.sweeps, "fork_server", lambda: seen.update(fork_server=True))
        monkeypatch.setattr(
            entry_point.sweep_run, "conclude", lambda sweep, folder, found: seen.update(ended=found) or 9
        )
        monkeypatch.setattr(entry_point.hydra_errors, "explain", lambda error, conf: f"explained: {error}")
        monkeypatch.setattr(entry_point.hydra_private, "raised_by_hydra", lambda _: replaced.get("by_hydra", False))
        monkeypatch.setattr(entry_point.hydra_private, "raised_by_plugin", lambda _: replaced.get("by_plugin", False))
        monkeypatch.setattr(entry_point.time, "sleep", lambda seconds: seen.update(waited=seconds))
        monkeypatch.setattr(sys, "argv", ["train.py", *words.split()])
        code = entry_point.run(CONF)
        said = capsys.readouterr()
        return {"code": code, "out": said.out, "err": said.err.splitlines(), "verbose": console.VERBOSE} | seen

    return ended


def test_an_error_of_ours_is_raised(ended):
    with pytest.raises(ZeroDivisionError):
        ended("train.seed=1", ZeroDivisionError())


def test_menus_of_another_folder_are_looked_at_where_they_are_named(ended, tmp_path):
    more = tmp_path / "more"
    (more / "optim").mkdir(parents=True)
    (more / "optim" / "own.yaml").write_text("x: 1")
    assert ended(f"--config-dir {more} optim=own", statuses=["ok"])["code"] == 0
    assert ended("optim=own", statuses=["ok"])["code"] == 2
    assert ended("--config-path x optim=own", statuses=["ok"])["code"] == 0
    assert ended("hydra.searchpath=[x] optim=own", statuses=["ok"])["code"] == 0
    (more / "optim" / "own.yaml").write_text("x: " + "[" * 500 + "]" * 500)
    (line,) = ended(f"--config-dir {more} optim=own")["err"]
    assert line.endswith("own.yaml: its values are nested too deep to be read. Write fewer levels.")


@pytest.mark.parametrize(
    "mode, statuses, ran, returned",
    [
        ("RUN", [], "alone", "ok"),
        ("MULTIRUN", [], "in a sweep", "oom"),
        ("MULTIRUN", ["ok"], "in a sweep", "oom"),
        ("MULTIRUN", ["interrupted"], None, "interrupted"),
        ("MULTIRUN", ["preempted", "ok"], None, "ok"),
        ("MULTIRUN", [sweeps.INVALID], None, sweeps.INVALID),
        ("MULTIRUN with a number", [], "in a sweep", 0.5),
    ],
    ids=range(7),
)
def test_a_job_runs_alone_or_in_a_sweep_that_goes_on(monkeypatch, tmp_path, mode, statuses, ran, returned):
    seen: list[str] = []

    def alone(*_):
        seen.append("alone")
        return "ok"

    def in_sweep(composed, hydra_config, sweep, folder):
        assert folder == Path("x").absolute()
        seen.append("in a sweep")
        return "oom", 0.5 if "number" in mode else None

    config = types.SimpleNamespace(mode=entry_point.RunMode[mode.split()[0]], sweep=types.SimpleNamespace(dir="x"))
    monkeypatch.setattr(entry_point.hydra, "main", lambda **_: lambda job: job)
    monkeypatch.setattr(entry_point.HydraConfig, "get", lambda: config)
    monkeypatch.setattr(entry_point.single_run, "run_alone", alone)
    monkeypatch.setattr(entry_point.sweep_run, "run_in_sweep", in_sweep)
    found = list(statuses)
    main: Any = entry_point._hydra_main(tmp_path, sweeps.Sweep("s", tmp_path), found)
    assert main(None) == returned and seen == ([ran] if ran else [])
    assert found == statuses + ([] if ran is None else ["ok" if ran == "alone" else "oom"])


@pytest.mark.parametrize(
    "words, helps", [(["-h"], True), (["--help", "all"], True), (["--version"], True), (["a=1"], False)]
)
def test_help_is_said_without_hydra(monkeypatch, words, helps):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setattr(help_text, "say", lambda conf, typed: ("help", typed))
    monkeypatch.setattr(entry_point, "run", lambda conf: ("run", sys.argv[1:]))
    assert train.main(words) == (("help" if helps else "run"), words)


@pytest.mark.parametrize(
    "name, words, missing, ran",
    [
        ("doctor", [], True, True),
        ("train", ["a=1"], True, False),
        ("train", ["a=1", "--help"], True, True),
        ("estimate", ["-h"], True, True),
        ("report", ["x", "--help"], True, False),
        ("report", ["--help"], True, True),
        ("report", ["x"], False, True),
    ],
    ids=range(7),
)
def test_packages_that_are_missing_are_said_before_a_command_but_for_its_help(
    monkeypatch, capsys, name, words, missing, ran
):
    seen, loaded = [], []
    module = types.SimpleNamespace(main=lambda arguments: seen.append(arguments) or 0)
    monkeypatch.setattr(commands.importlib, "import_module", lambda _: module)
    monkeypatch.setattr(commands.requirements, "missing", lambda: ["torch is missing", "hydra too"] * missing)
    monkeypatch.setattr(commands.levers, "load_rules", lambda: loaded.append(name))
    monkeypatch.setattr(commands.signal, "signal", lambda *_: None)
    monkeypatch.setattr(commands, "_open_streams", lambda: None)
    assert commands.run(name, words) == (0 if ran else 2)
    expected = ["recipe=estimate", *words] if name == "estimate" else words
    assert seen == [expected] * ran and loaded == [name] * (ran and name != "doctor")
    lines = ["refused: torch is missing", "refused: hydra too"]
    assert capsys.readouterr().err.splitlines() == ([] if ran else lines * (missing // 2 or 1))


# --- help ---------------------------------------------------------------------------------------------------------

CONFIG = """# The configuration.
defaults:
  - optim: sgd
  - model: tiny

resume:  null    # the folder to go on with
device:  auto    # auto, cpu or cuda

batch:
  per_device: 4      # rows a step
                     # (not carried on within a section)
  effective: null
train:
  max_steps: 10
  epochs: null       # of the data, in place of max_steps, and with a comment that is far too long for one line
  learning_rate: 1e-3  # the largest
eval:
  generate: []       # texts
save:
  every_steps: null  # a checkpoint
hydra:
  run: x
"""
OPTIONS = {
    "optim": {
        "adam_x16": "# Adam of 16.\nname: adam\nbeta: 0.9  # as in the paper\neps: 1  # small\n"
        "args:\n  x: 1  # inner\n",
        "adam_x2": "# Adam of 2.\nname: adam\nbeta: 0.8  # as in the paper\neps: 1  # small\n",
        "sgd": "# Plain.\nname: sgd\nbeta: 0.9\neps: 1  # small\nlong: 3  # this one\n         # goes on\n",
    },
    "model": {
        "tiny": "#Tiny\nlayers: 2  # of it\n",
        **{f"option_number_{n}": f"# {n}\nlayers: {n}\n" for n in range(9)},
    },
}


@pytest.fixture
def conf(tmp_path, monkeypatch) -> Path:
    """The folder of two menus, with an experiment."""
    monkeypatch.setattr(help_text, "GROUPS", tuple(OPTIONS))
    monkeypatch.setattr(help_text, "NOT_LISTED", {"name", "defaults", "hydra"})
    monkeypatch.setattr(invocation, "command", lambda name="train": f"legroom {name}")
    (tmp_path / "config.yaml").write_text(CONFIG)
    for menu, options in OPTIONS.items():
        (tmp_path / menu).mkdir()
        for name, text in options.items():
            (tmp_path / menu / f"{name}.yaml").write_text(text)
    folder = tmp_path / "experiment" / "guide"
    folder.mkdir(parents=True)
    (tmp_path / "experiment" / "no_folder").touch()
    (folder / "b.yaml").write_text("# @package _global_\n# 1. the first\n")
    (folder / "a.yaml").write_text("# @package _global_\n# 2. the second\n")
    return tmp_path


def test_the_codes_of_help(conf, capsys, monkeypatch):
    monkeypatch.setattr(help_text.host, "version", lambda name: {"torch": "2", "hydra-core": "1"}.get(name))
    assert help_text.say(conf, ["--version"]) == 0
    assert capsys.readouterr().out == f"legroom {help_text.__version__}, with torch 2, hydra-core 1\n"
    assert help_text.say(conf, ["--help", "nothing_like_it"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("refused: --help nothing_like_it: there is no such menu or section.")
    assert help_text.say(conf, ["-h"]) == 0 and capsys.readouterr().out.startswith("Legroom trains")


@pytest.mark.parametrize(
    "options, said",
    [(["a", "b", "c"], ""), (["a"], "(a)"), (["a", "b"], "(all but c)"), ([], "()")],
)
def test_some_options_are_named_by_the_shorter_list(options, said):
    assert help_text._which(options, ["a", "b", "c"]) == said


def test_of_as_many_options_the_ones_that_are_meant_are_named():
    assert help_text._which(["a", "b"], ["a", "b", "c", "d"]) == "(a, b)"
