"""train.ema: the running mean of the weights is what is evaluated and saved; the training itself stays the same."""

from __future__ import annotations

import pytest
import torch
from conftest import compose, small
from safetensors.torch import load_file
from test_optimizer import train as train_here
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from legroom.levers.ema.apply import EMA, RunningMean
from legroom.parallelism import unwrap

DECAY = 0.75
TWO = ["parallelism=fsdp", "parallelism.num_processes=2"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_the_mean_is_that_of_torch(kind, dtype):
    model = torch.nn.Linear(4, 4).to(dtype)
    optimizer = kind(model.parameters(), lr=0.1)
    RunningMean(optimizer, DECAY)
    averaged = AveragedModel(torch.nn.Linear(4, 4), multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    wide = torch.nn.Linear(4, 4)
    for step in range(4):
        model(torch.full((2, 4), step + 1.0, dtype=dtype)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        wide.load_state_dict({name: weight.float() for name, weight in model.state_dict().items()})
        averaged.update_parameters(wide)
    for weight, mean in zip(model.parameters(), averaged.module.parameters()):
        assert optimizer.state[weight][EMA].dtype == torch.float32
        assert optimizer.state[weight][EMA].equal(mean)
    trained = [weight.detach().clone() for weight in model.parameters()]
    with unwrap.evaluation_weights(optimizer):
        for weight, mean in zip(model.parameters(), averaged.module.parameters()):
            assert weight.equal(mean.to(dtype))
    assert all(weight.equal(before) for weight, before in zip(model.parameters(), trained))


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_it_is_evaluated_and_saved_and_changes_no_loss(train, recipe):
    words = [f"recipe={recipe}", "train.max_steps=4", "train.learning_rate=0.01", "save.final=true", "optim=adamw"]
    plain, mean = train(*words), train(*words, f"train.ema={DECAY}")
    assert mean.record.training.losses == plain.record.training.losses
    assert mean.record.evaluation.loss != plain.record.evaluation.loss
    saved, trained = (load_file(run.folder / "model/model.safetensors") for run in (mean, plain))
    changed = [name for name, weight in trained.items() if not weight.equal(saved[name])]
    assert len(changed) > len(trained) / 2
    more = mean.record.memory.largest_bytes["optimizer"] - plain.record.memory.largest_bytes["optimizer"]
    assert more == 4 * plain.record.memory.parameter_count, "a mean in fp32"


def test_both_recipes_have_the_same_mean(tmp_path):
    words = ["optim=sgd", f"train.ema={DECAY}", "train.learning_rate=0.1"]
    means = []
    for recipe in ("accelerate", "trainer"):
        loop, _ = train_here(recipe, tmp_path, *words)
        state = unwrap.inner_optimizer(loop.optimizer).state
        means.append([state[weight][EMA] for weight in loop.bare_model.parameters() if EMA in state[weight]])
    assert len(means[0]) > 3 and all(one.equal(other) for one, other in zip(*means, strict=True))


def test_it_goes_on_from_a_checkpoint_and_with_shards(train, again, tmp_path):
    """What two ranks saved one process goes on with: the mean is a state as any other."""
    words = ["recipe=accelerate", "train.learning_rate=0.01", f"train.ema={DECAY}", "model.dropout=0"]
    words += ["train.max_steps=4", "measure.ledger=false"]
    alone = train(*words, "batch.per_device=4")
    sharded = train(*words, *TWO, "save.every_steps=2")
    assert sharded.record.evaluation.loss == pytest.approx(alone.record.evaluation.loss, rel=1e-5)
    run = sharded.folder
    (run / "checkpoints" / "step-00000002").rename(tmp_path / "step-00000002")
    folder = tmp_path / "resumed"
    (folder / "checkpoints").mkdir(parents=True)
    (tmp_path / "step-00000002").rename(folder / "checkpoints" / "step-00000002")
    resumed, _ = again(folder, *words, "batch.per_device=4", "resume=latest")
    assert resumed.training.resumed_from_step == 2
    assert resumed.evaluation.loss == pytest.approx(alone.record.evaluation.loss, rel=1e-5)


def test_an_estimate_counts_the_mean(predicted):
    words = small("gpu=l4_24gb", "device=auto")
    plain, mean = predicted(*words), predicted(*words, "train.ema=0.999")
    more = mean.memory.largest_bytes["optimizer"] - plain.memory.largest_bytes["optimizer"]
    assert more == pytest.approx(4 * plain.memory.parameter_count, rel=0.01)


@pytest.mark.parametrize(
    "words,why",
    [
        (["optim=schedule_free"], "averages the weights itself"),
        (["optim.in_backward=true", "train.max_grad_norm=0"], "takes a step for each weight"),
        (["parallelism=zero", "parallelism.num_processes=2"], "flat pieces"),
    ],
)
def test_what_does_not_go_with_it_is_refused(words, why):
    problems = compose("device=cpu", "train.ema=0.999", *words).problems
    assert any("train.ema" in line and why in line for line in problems), problems
