"""Flags: Hydra's own wherever they stand, those of other programs with the key in their place."""

from __future__ import annotations

import importlib

import pytest
import random_lines

from legroom.cli import commands, flags
from legroom.errors import Refusal


@pytest.mark.parametrize(
    "typed, expected",
    [
        (["--bf16"], "Type precision=bf16."),
        (["--bf16", "True"], "Type precision=bf16."),
        (["--learning_rate=1e-4"], "Type train.learning_rate=1e-4."),
        (["--learning_rate", "1e-4"], "Type train.learning_rate=1e-4."),
        (["--learning-rate", "1e-4"], "Type train.learning_rate=1e-4."),
        (["--model=bert_base"], "Type model=bert_base."),
        (["--model_name_or_path", "a/b"], "Type model.pretrained=a/b."),
        (["--train.seed", "3"], "Type train.seed=3."),
        (["--compile"], "Type compile=true."),
        (["--optim=adamw_torch"], "Type optim=adamw."),
        (["--optim", "adamw_torch_fused"], "Type optim=adamw_fused."),
        (["--optim=paged_adamw_8bit"], "Type optim=paged_adam8bit."),
        (["--optim=x"], "Type optim=<option>."),
        (["--model", "a/b"], "Type model.pretrained=a/b."),
        (["--train.seed"], "Type train.seed=<value>."),
        (["--train.seed=x"], "Type train.seed=<a whole number>."),
        (["--train"], "Type train.<key>=<value>."),
        (["--tracker.tags=a"], "Type tracker.tags=[a]."),
        (["--resume"], "Type resume=latest."),
        (["--do_train"], "Leave it out"),
        (["--do_train"], "--do_train: there is no such flag"),
        (["--train.seed=x"], "--train.seed=x: there is no such flag"),
        (["--task_name", "mrpc"], "Type data=mrpc."),
        (["--report_to", "wandb"], "Type tracker=wandb."),
        (["--mixed_precision=x"], "Type precision=<bf16|"),
        (["--hlep"], "Did you mean --help?"),
        (["-x"], "there is no such flag"),
        (["--cfg", "nope"], "invalid choice: 'nope'"),
        (["--cfg"], "expected one argument"),
        (["--experimental-rerun", "job.pickle"], "--experimental-rerun is not supported."),
        (["--experimental-rerun=job.pickle"], "--experimental-rerun is not supported."),
    ],
)
def test_a_flag_that_does_not_exist_says_what_to_type(typed, expected):
    (line,) = flags.split(["optim=sgd", *typed]).problems
    assert expected in line and "usage" not in line


@pytest.mark.parametrize(
    "typed, first, rest",
    [
        (["optim=adamw,sgd", "-m", "data.seq_len=32"], ["-m"], ["optim=adamw,sgd", "data.seq_len=32"]),
        (["a=1", "--cfg", "job", "b=2"], ["--cfg", "job"], ["a=1", "b=2"]),
        (["a=1", "--cfg=job"], ["--cfg=job"], ["a=1"]),
        (["a=1", "--info", "defaults"], ["--info", "defaults"], ["a=1"]),
        (["--info", "a=1"], ["--info"], ["a=1"]),
        (["a=1", "--multi"], ["--multirun"], ["a=1"]),
        (["a=1", "--", "b=2"], [], ["a=1", "b=2"]),
        (["hydra.mode=MULTIRUN", "a=1,2"], ["--multirun"], ["a=1,2"]),
    ],
)
def test_flags_may_stand_anywhere(typed, first, rest):
    line = flags.split(typed)
    assert (line.flags, line.overrides, line.problems) == (first, rest, [])


def test_random_command_lines_are_refused_in_our_terms_and_without_delay():
    outcomes = list(random_lines.check_all(random_lines.lines(seed=0, count=60)))
    failed = [f"{outcome.typed}\n{outcome.problem}" for outcome in outcomes if outcome.kind == "failed"]
    assert not failed, "\n".join(failed)
    assert {outcome.kind for outcome in outcomes} == {"refused", "runs", "prints"}


@pytest.mark.parametrize(
    "line",
    [
        ["chat", ""],
        ["export", "", "--merge"],
        ["export", "run", "--merge", "--to", " "],
        ["report", "runs", ""],
        ["report", "runs", "--into", ""],
        ["app", "--models", ""],
        ["check", "--into", "", "script.py"],
        ["check", "--gpu", "l4_24gb", ""],
        ["measure", "--share", "", "script.py"],
        ["measure", " "],
        ["fit", "model=gpt2_tiny", "gpu=l4_24gb", "fit.keep="],
        ["fit", "model=gpt2_tiny", "gpu=l4_24gb", "model.pretrained="],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_not_the_current_folder(line, capsys, tmp_path, monkeypatch):
    """`legroom chat $UNSET` would talk to whatever model lies here, and `report` would write its files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "__main__.py").write_text("print(1)")
    name, *arguments = line
    with pytest.raises((SystemExit, Refusal)) as ended:
        code = importlib.import_module(commands.COMMANDS[name][0]).main(arguments)
        raise SystemExit(code)
    said = capsys.readouterr().err + str(ended.value)
    assert "is empty: is the shell's variable set?" in said and "Traceback" not in said
    assert isinstance(ended.value, Refusal) or ended.value.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["__main__.py"]
