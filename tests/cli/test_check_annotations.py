"""What a pull request shows of a check: SARIF, GitHub's annotations, and the action that asks for them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from legroom.cli import check as check_command
from legroom.cli import check_annotations
from legroom.errors import Refusal
from legroom.estimator.cards import gpu_of
from legroom.estimator.step_estimate import StepEstimate
from legroom.script_check import check, command, process
from legroom.units import GIB, PARTS

ACTION = Path(__file__).resolve().parents[2] / "examples" / "github_action" / "action.yml"
NAME = "l4_24gb"


@pytest.fixture
def follows(tmp_path, monkeypatch):
    """follows(verdict, used, made_by) lets the command follow a script of that verdict, in a folder that has it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("import torch\n" * 9)

    def follows(verdict="fits", used=10 * GIB, made_by="script.py:7", names=(NAME,)):
        fields: dict[str, Any] = dict.fromkeys(StepEstimate.__dataclass_fields__, 0)
        tensor = {"bytes": GIB, "part": "activations", "made_by": made_by, "count": 2}
        fields |= {"verdict": verdict, "device_used_bytes": used}
        fields |= {
            "parts": dict.fromkeys((part for _, part in PARTS), 0),
            "timeline": (),
            "largest": (tensor,),
            "notes": (),
        }
        fields |= {"bound_by": "host", "peak_phase": "step", "_trace": None, "model_flops": None}
        fields |= {"step_seconds": 2.0, "step_seconds_low": 1.0, "step_seconds_high": 3.0}
        program = command.parse(["script.py"])
        estimates = {}
        for name in names:
            fields["device_name"] = gpu_of(name).device_name
            if verdict is not None:
                estimates[name] = StepEstimate(**fields)
        why = "it ended: no rows, script.py:3" if verdict is None else ""
        done = check.Checked(program, process.Outcome(), estimates, why, gpus={name: gpu_of(name) for name in names})
        monkeypatch.setattr(check, "followed", lambda *_: [done])

    return follows


def results_of(file) -> list[dict]:
    log = json.loads(Path(file).read_text())
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert all(result["ruleId"] in known for result in run["results"])
    return run["results"]


def test_two_machines_with_the_same_card_have_the_price_of_each(follows):
    names = ("aws/p5.4xlarge", "aws/p5.48xlarge")
    follows(names=names)
    check_command.main(["--gpu", ",".join(names), "--steps", "1000", "--sarif", "out.sarif", "script.py"])
    small, large = [result["message"]["text"] for result in results_of("out.sarif")]
    assert "6.88 US dollars" in small and "55.04" not in small
    assert "55.04 US dollars" in large and "6.88" not in large


def test_what_refuses_a_further_flag_leaves_the_verdict(follows, monkeypatch, capsys):
    def refuse(*_):
        raise Refusal("no such flag")

    follows()
    monkeypatch.setattr(check_command.try_levers, "tried", refuse)
    assert check_command.main(["--gpu", NAME, "--github", "--try", "script.py"]) == 2
    assert "::notice file=script.py,line=7,title=fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    "verdict, budget, rule, level, line",
    [
        ("fits", [], "fits", "note", 7),
        ("tight", [], "tight", "warning", 7),
        ("does not fit", [], "does-not-fit", "error", 7),
        ("fits", ["--budget", "8GiB"], "above-budget", "error", 7),
        (None, [], "no-verdict", "error", 3),
    ],
)
def test_a_verdict_is_a_result_at_a_line_of_the_script(follows, verdict, budget, rule, level, line):
    follows(verdict)
    check_command.main(["--gpu", NAME, "--sarif", "out.sarif", *budget, "script.py"])
    (result,) = results_of("out.sarif")
    assert (result["ruleId"], result["level"]) == (rule, level)
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "script.py" and place["region"]["startLine"] == line


def test_a_line_of_a_library_is_none_of_the_repository(follows):
    follows(made_by="/usr/lib/python3/site-packages/torch/nn/functional.py:99")
    check_command.main(["--gpu", NAME, "--sarif", "out.sarif", "script.py"])
    (result,) = results_of("out.sarif")
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 1
    assert "/usr" not in result["message"]["text"]


def test_github_has_an_annotation_and_a_summary(follows, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    follows("does not fit")
    assert check_command.main(["--gpu", NAME, "--github", "--steps", "1800", "--price", "2", "script.py"]) == 3
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert line.startswith("::error file=script.py,line=7,title=does-not-fit (l4_24gb)::")
    assert "for 1,800 steps, costs" in line  # time and money of the run
    assert "| l4_24gb | does-not-fit |" in (tmp_path / "summary.md").read_text()


def test_an_annotation_is_one_line_whatever_its_text():
    found = check_annotations.Finding("fits", "note", "a,b", "50 % free\nof it: all", "a:b.py", 3)
    (line,) = check_annotations.workflow_commands([found])
    assert line == "::notice file=a%3Ab.py,line=3,title=fits (a%2Cb)::50 %25 free%0Aof it: all"


def test_what_cannot_be_written_is_said_before_the_script_runs(follows, capsys):
    follows()
    assert check_command.main(["--gpu", NAME, "--sarif", "nowhere/out.sarif", "script.py"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert check_command.main(["--gpu", NAME, "--github", "--json", "script.py"]) == 2


def test_the_action_types_what_its_inputs_say(tmp_path):
    """Its shell step is run with a command in place of Legroom's, which prints its arguments."""
    action = yaml.safe_load(ACTION.read_text())
    (step,) = [step for step in action["runs"]["steps"] if step["name"] == "Check"]
    given = {"command": "python train.py --note 'a;b'", "gpu": "aws/g5.2xlarge", "steps": "50", "sarif": "s.sarif"}
    environment = {}
    for name, expression in step["env"].items():
        key = expression.removeprefix("${{ inputs.").removesuffix(" }}")
        environment[name] = given.get(key, str(action["inputs"][key].get("default", "")))
    shown = tmp_path / "legroom"
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shown.chmod(shown.stat().st_mode | stat.S_IEXEC)
    environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-euc", step["run"]], env=environment, capture_output=True, text=True, check=True)
    typed = done.stdout.splitlines()
    assert typed[:8] == ["check", "--gpu", "aws/g5.2xlarge", "--github", "--sarif", "s.sarif", "--steps", "50"]
    assert typed[8:] == ["--", "python", "train.py", "--note", "'a;b'"]  # nothing of it is a command of the shell


@pytest.mark.parametrize("file", ["action.yml", "workflow.yml"])
def test_the_examples_are_yaml_and_name_inputs_that_there_are(file):
    values = yaml.safe_load((ACTION.parent / file).read_text())
    if file == "workflow.yml":
        steps = values["jobs"]["fits"]["steps"]
        (step,) = [step for step in steps if str(step.get("uses", "")).startswith("./.github/actions")]
        inputs = yaml.safe_load(ACTION.read_text())["inputs"]
        required = {name for name, each in inputs.items() if each.get("required")}
        assert required <= set(step["with"]) <= set(inputs)
