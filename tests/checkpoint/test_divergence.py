"""A training that diverges is not ok: it stops, the last good checkpoint stays, and nothing else is saved."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import compose, small

from legroom.checkpoint import divergence
from legroom.checkpoint.divergence import MOST_SKIPPED_STEPS, DivergenceWatch
from legroom.cli import brief
from legroom.errors import NoStepTaken
from legroom.levers.optim import optimizer
from legroom.options import objective, train
from legroom.records import checkpoint_files
from legroom.records.run_folder import MODEL_FOLDER, STEPS_FILE

RECIPES = ["trainer", "accelerate"]
# The first step has the rate 0, the second 4e15: the third step's numbers overflow.
TOO_FAST = ["train.learning_rate=8e15", "train.warmup_steps=2", "measure.ledger=false"]
DIVERGES = [*TOO_FAST, "train.max_steps=8", "save.every_steps=1", "save.final=true"]

# --- whole runs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def diverged(train):
    """Recipe -> its run that diverged."""
    return {recipe: train(f"recipe={recipe}", *DIVERGES, status="diverged") for recipe in RECIPES}


@pytest.mark.parametrize("recipe", RECIPES)
def test_diverged_run_keeps_the_last_good_checkpoint(diverged, recipe):
    run = diverged[recipe]
    kept = checkpoint_files.in_run(run.folder)
    assert run.record.error.type == "Diverged" and kept and not (run.folder / MODEL_FOLDER).exists()
    last = checkpoint_files.step_of(kept[0])
    assert last < run.record.training.steps and math.isfinite(run.record.training.losses[last - 1])
    for folder in kept:
        checkpoint_files.verify(folder)


@pytest.mark.parametrize("recipe", RECIPES)
def test_summary_of_a_diverged_run(diverged, recipe):
    run = diverged[recipe]
    lines = " ".join(brief.brief(run.record, run.folder).split())
    last = checkpoint_files.step_of(checkpoint_files.in_run(run.folder)[0])
    assert "type train.learning_rate=0.001." in lines and "larger one" not in lines
    assert f"The last good checkpoint is of step {last}" in lines
    assert "resume=latest resume_allow=[learning_rate] train.learning_rate=0.001" in lines


# After step 4 a weight is no number, whatever the learning rate.
POISONED = """
from legroom.training import after_step
original = after_step.EvaluateThenSave.after_step
def poisoned(self, step):
    if step == 4:
        next(self.loop.bare_model.parameters()).data[0] = float("nan")
    return original(self, step)
after_step.EvaluateThenSave.after_step = poisoned
"""


@pytest.mark.parametrize("recipe", RECIPES)
def test_resume_at_a_lower_rate(train, again, fault, recipe):
    typed = [f"recipe={recipe}", "train.max_steps=8", "save.every_steps=2", "train.schedule=constant"]
    first = train(*typed, "train.learning_rate=0.01", fork_server=fault(POISONED), status="diverged")
    assert [checkpoint_files.step_of(each) for each in checkpoint_files.in_run(first.folder)] == [2]
    lower = ["train.learning_rate=0.001", "resume=latest", "resume_allow=[learning_rate]"]
    record, _ = again(first.folder, *typed, *lower)
    assert record.training.resumed_from_step == 2 and record.training.steps == 8
    rows = [json.loads(line) for line in (first.folder / STEPS_FILE).read_text().splitlines()]
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    assert rates == [0.01] * 2 + [0.001] * 6


def test_another_rate_must_be_allowed(diverged, command):
    folder = diverged["accelerate"].folder
    typed = [word for word in small(*DIVERGES) if not word.startswith("train.learning_rate=")]
    ended = command(*typed, "recipe=accelerate", "train.learning_rate=0.1", f"resume={folder}", fork_server=None)
    assert ended.code == 2 and "resume_allow=[learning_rate]" in ended.err + ended.out


@pytest.mark.parametrize("recipe", RECIPES)
def test_divergence_is_noticed_at_the_end(train, recipe):
    run = train(f"recipe={recipe}", *TOO_FAST, "train.max_steps=4", "train.log_seconds=100", status="diverged")
    assert run.record.error.type == "Diverged" and not checkpoint_files.in_run(run.folder)


def test_nan_loss_stops_the_training(train):
    run = train(*TOO_FAST, "train.max_steps=500", "train.log_seconds=0", status="diverged")
    assert run.record.training.steps < 6


def test_continue_saves_no_nan(train):
    run = train(*DIVERGES, "train.on_nan=continue")
    steps = [checkpoint_files.step_of(folder) for folder in checkpoint_files.in_run(run.folder)]
    assert run.record.training.steps == 8 and run.record.training.diverged
    assert steps and max(steps) < 4 and not (run.folder / MODEL_FOLDER).exists()
    assert [text for text in run.record.warnings if "no model is saved" in text]
    assert "larger one" not in brief.brief(run.record, run.folder)


@pytest.mark.parametrize("mode", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_all_ranks_agree(train, mode):
    ranks = [f"parallelism={mode}", "parallelism.num_processes=2"]
    run = train(*DIVERGES, *ranks, "train.log_seconds=0", status="diverged")
    assert run.record.error.type == "Diverged" and checkpoint_files.in_run(run.folder)


def test_exit_code_of_a_diverged_run(command, tmp_path):
    typed = [word for word in small(*TOO_FAST, "train.max_steps=4") if not word.startswith("train.learning_rate=")]
    alone = command(*typed, "train.learning_rate=8e15")
    assert alone.code == 4 and alone.out.startswith("diverged: ")
    sweep = ["-m", *typed, "train.learning_rate=0.001,8e15", f"hydra.sweep.dir={tmp_path}/sweep"]
    first, second = command(*sweep), command(*sweep)
    assert first.code == 0 and "1 ok, 1 diverged" in first.out
    assert second.code == 0 and second.out.count("done before") == 2
    assert "train.learning_rate=0.001." in (tmp_path / "sweep" / "table.md").read_text()


def test_diverged_run_has_no_objective(diverged):
    cfg = SimpleNamespace(objective="training.tokens")
    assert math.isnan(objective.value(cfg, diverged["accelerate"].record))


# --- steps that were skipped ------------------------------------------------------------------------

# The loss of some steps is not a number, and the weights are, as where fp16's gradient scaler has skipped a step.
LOSS_IS_NO_NUMBER = """
from legroom.training import accelerate_loop
step, count = accelerate_loop.Loop.step, 0
def numbered(self, batches):
    global count
    count += 1
    loss, *figures = step(self, batches)
    return (loss * float("nan") if count in {} else loss, *figures)
accelerate_loop.Loop.step = numbered
"""


def test_skipped_batch_is_a_warning(train, fault):
    run = train(
        "train.max_steps=8", "train.log_seconds=0", fork_server=fault(LOSS_IS_NO_NUMBER.replace("{}", "(3, 5)"))
    )
    assert run.record.training.steps == 8
    said = [text for text in run.record.warnings if "not a number" in text]
    assert said[0].startswith("the loss of step 3 is not a number") and "2 of 8 steps" in said[1]


@pytest.mark.parametrize("steps", [4, 40])
def test_training_without_a_step_has_diverged(train, fault, steps):
    server = fault(LOSS_IS_NO_NUMBER.replace("{}", "range(100)"))
    run = train(f"train.max_steps={steps}", "train.log_seconds=0", fork_server=server, status="diverged")
    assert run.record.error.type == "NoStepTaken" and run.record.training.steps <= MOST_SKIPPED_STEPS + 1
    assert "precision=bf16" in run.record.error.hint


# --- where it is looked for -------------------------------------------------------------------------


def trained(optim: str, **more):
    """A loop's parts with a small model that `optim` has trained for a step."""
    cfg = compose(*small(f"optim={optim}", "train.learning_rate=0.01")).cfg
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    args = SimpleNamespace(learning_rate=0.01, weight_decay=0.0)
    made = torch.optim.AdamW(model.parameters(), lr=0.01) if optim == "adamw" else None
    made = made or optimizer.FACTORIES[optim](cfg, args, model)
    model(torch.randn(4, 8)).sum().backward()
    made.step()
    accelerator = SimpleNamespace(unwrap_model=lambda model, **_: model)
    return SimpleNamespace(accelerator=accelerator, model=model, optimizer=made, **more)


def test_every_tensor_is_looked_at():
    loop = trained("adamw")
    assert divergence.first_not_finite(loop) is None
    weights = dict(loop.model.named_parameters())
    states = [(name, loop.optimizer.state[weight]) for name, weight in weights.items()]
    tensors = weights | {f"{name}/{key}": value for name, state in states for key, value in state.items()}
    for name, tensor in tensors.items():
        if not tensor.dim():
            continue
        for value in (math.nan, math.inf, -math.inf):
            before = tensor.detach().clone()
            with torch.no_grad():
                tensor.view(-1)[-1] = value
            assert divergence.first_not_finite(loop) == name
            with torch.no_grad():
                tensor.copy_(before)


@pytest.mark.parametrize("value,found", [(math.inf, None), (-math.inf, None), (math.nan, "1.running_mean")])
def test_infinite_buffers_are_allowed(value, found):
    loop = trained("adamw")
    loop.model[1].running_mean[0] = value
    assert divergence.first_not_finite(loop) == found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_weights_of_any_type_are_looked_at(dtype):
    loop = trained("adamw")
    weight = torch.ones(4, 4).to(dtype)
    loop.model.register_parameter("low", torch.nn.Parameter(weight.clone()))
    assert divergence.first_not_finite(loop) is None
    weight = weight.float()
    weight[1, 1] = math.nan
    loop.model.low = torch.nn.Parameter(weight.to(dtype))
    assert divergence.first_not_finite(loop) == "low"


def test_frozen_weights_are_not_looked_at():
    loop = trained("adamw")
    loop.model.register_parameter("frozen", torch.nn.Parameter(torch.full((2,), math.inf), requires_grad=False))
    assert divergence.first_not_finite(loop) is None


@pytest.mark.parametrize(
    "losses,error",
    [
        ([1.0, math.nan], None),
        ([math.nan] * (MOST_SKIPPED_STEPS - 1), None),
        ([1.0, *[math.inf] * MOST_SKIPPED_STEPS], NoStepTaken),
    ],
)
def test_when_skipped_steps_end_a_training(losses, error):
    log = SimpleNamespace(losses=[], flush=lambda: None)
    warned = []
    cfg = SimpleNamespace(train=SimpleNamespace(on_nan="stop"))
    watch = DivergenceWatch(cfg, log, trained("adamw"), SimpleNamespace(warn=warned.append))
    assert not watch.suspects()
    log.losses += losses
    assert watch.suspects() and not watch.suspects()
    if error is None:
        watch.confirm(len(losses))
        assert len(warned) == 1
    else:
        with pytest.raises(error):
            watch.confirm(len(losses))


def test_nothing_is_looked_at_without_a_reason(monkeypatch):
    """A step whose losses are finite reads neither weights nor states."""
    looked = []
    monkeypatch.setattr(divergence, "first_not_finite", looked.append)
    log = SimpleNamespace(losses=[2.0, 1.0])
    cfg = SimpleNamespace(train=SimpleNamespace(on_nan="stop"))
    watch = DivergenceWatch(cfg, log, None, None)
    log.losses += [3.0, 1e30]
    assert not watch.suspects() and not looked


@pytest.mark.parametrize("rate,lower", [("1e8", 0.003), ("0.004", 0.0004), ("0.03", 0.003), ("0.0001", 0.00001)])
def test_which_rate_is_advised(rate, lower):
    cfg = compose(*small("model=gpt2_tiny", "data=source", f"train.learning_rate={rate}")).cfg
    assert train.lower_rate(cfg) == pytest.approx(lower)
    assert f"train.learning_rate={lower:g}" in train.lower_rate_hint(cfg)


@pytest.mark.parametrize("rate, refused", [("9e15", False), ("1e16", True), ("1e30", True)])
def test_a_rate_whose_checkpoint_could_not_be_opened_is_refused(rate, refused):
    """Else the last good checkpoint of what diverges would be named, and refused where it is resumed."""
    problems = compose("device=cpu", f"train.learning_rate={rate}").problems
    assert [line.startswith("train.learning_rate=1e+") and "Type one near" in line for line in problems] == [
        True
    ] * refused
