"""eval.patience and save.best: the best evaluation ends a training, and its weights are saved and evaluated."""

from __future__ import annotations

import json
import shutil

import pytest
from conftest import compose
from safetensors.torch import load_file

from legroom.records import checkpoint_files
from legroom.training.best import best, evaluations_since_best

# A rate so high that later weights are worse.
WORSE = ["train.learning_rate=0.05", "train.schedule=constant", "measure.ledger=false", "eval.every_steps=1"]


def rows(*values, metric="loss"):
    return [{"step": step, f"evaluation_{metric}": value} for step, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    "values,metric,step,since",
    [
        ((3.0, 2.0, 2.5), "loss", 2, 1),
        ((3.0, 2.0, 2.0), "loss", 2, 1),  # as good is no better
        ((0.5, 0.75, 0.7), "accuracy", 2, 1),
        ((None, 2.0, None), "loss", 2, 1),
        ((None, None), "loss", None, 2),
        ((), "loss", None, 0),
    ],
)
def test_the_best_of_evaluations(values, metric, step, since):
    chosen = best(rows(*values, metric=metric), metric)
    assert (chosen and chosen["step"]) == step
    assert evaluations_since_best(rows(*values, metric=metric), metric) == since


def losses_between(run) -> dict[int, float]:
    """Step -> evaluation loss, of the evaluations between steps."""
    lines = [json.loads(line) for line in (run.folder / "steps.jsonl").read_text().splitlines()]
    found: dict[int, float] = {}
    for line in lines:
        if "evaluation_loss" in line:
            found.setdefault(line["step"], line["evaluation_loss"])
    return found


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_the_best_weights_are_evaluated_and_saved(train, recipe):
    """They are those of a training that ends there."""
    words = [f"recipe={recipe}", *WORSE, "save.final=true"]
    run = train(*words, "train.max_steps=4", "save.best=true", "tracker=local")
    losses = losses_between(run)
    step = min(losses, key=lambda step: losses[step])
    assert len(losses) == 4 and step < 4, losses
    assert run.record.evaluation.best_step == step
    assert run.record.evaluation.loss == pytest.approx(losses[step], rel=1e-6)
    assert [checkpoint_files.step_of(folder) for folder in checkpoint_files.in_run(run.folder)] == [step]
    short = train(*words, f"train.max_steps={step}")
    ours, theirs = (load_file(each.folder / "model/model.safetensors") for each in (run, short))
    assert all(weight.equal(theirs[name]) for name, weight in ours.items())


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_patience_ends_the_training(train, recipe):
    words = [f"recipe={recipe}", *WORSE, "train.max_steps=6", "tracker=local"]
    run = train(*words, "eval.patience=2")
    losses = losses_between(run)
    stopped = run.record.training.steps
    assert run.record.status == "ok" and run.record.training.planned_steps == 6 and stopped < 6
    smallest = min(losses, key=lambda step: losses[step])
    assert stopped == smallest + 2


def test_a_resumed_training_knows_the_best_before_it(train, again, tmp_path):
    words = ["recipe=accelerate", *WORSE, "train.max_steps=4", "save.best=true", "save.every_steps=3", "tracker=local"]
    whole = train(*words)
    shutil.copytree(whole.folder / "checkpoints", tmp_path / "checkpoints")
    shutil.rmtree(tmp_path / "checkpoints/step-00000004")  # as of a run that was killed
    resumed, warned = again(tmp_path, *words, "resume=latest")
    assert resumed.training.resumed_from_step == 3 and not warned
    assert resumed.evaluation.best_step == whole.record.evaluation.best_step
    assert resumed.evaluation.loss == whole.record.evaluation.loss
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    far, warned = again(elsewhere, *words, f"resume={whole.folder / 'checkpoints/step-00000003'}")
    assert far.evaluation.best_step == 4 and any("save.best" in line for line in warned)


@pytest.mark.parametrize(
    "words,said",
    [
        (["eval.patience=2"], "Type eval.every_steps= too."),
        (["save.best=true"], "Type eval.every_steps= too."),
        (["eval.metric=accuracy"], "Type one of them too."),
        (["save.best=true", "eval.every_steps=1", "eval.metric=f1"], "Type eval.metric=loss or accuracy."),
        (["save.best=true", "eval.every_steps=1", "parallelism=zero", "parallelism.num_processes=2"], "save.best"),
    ],
)
def test_what_cannot_be_compared_is_refused(words, said):
    problems = compose("device=cpu", *words).problems
    assert any(said in line for line in problems), problems
