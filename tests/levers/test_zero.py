"""DeepSpeed's ZeRO: what is refused, what DeepSpeed is told, and that it trains the same where it is installed."""

from __future__ import annotations

import functools

import pytest
import torch
from conftest import compose, small
from safetensors.torch import load_file

from legroom.levers.parallelism import zero_rules
from legroom.machine import host
from legroom.parallelism import zero

RECIPES = ["trainer", "accelerate"]
TWO = ["parallelism=zero", "parallelism.num_processes=2"]
MISSING = "parallelism=zero needs the package deepspeed: pip install deepspeed, or choose parallelism=fsdp."
INSTALLED = host.has("deepspeed")


@pytest.fixture(scope="module")
def run(train):
    """train, but the same job only once."""
    return functools.cache(train)


def problems(*overrides: str) -> list[str]:
    """What is refused, apart from the package."""
    found = compose(*small(*TWO, *overrides)).problems
    return [problem for problem in found if problem != MISSING]


def test_deepspeed_is_told_how_many_gradients_to_send_at_a_time():
    told = [
        zero.configuration(compose(*small(*TWO, *more)).cfg) for more in ([], ["parallelism.reduce_bucket_size=4096"])
    ]
    assert [each["zero_optimization"]["reduce_bucket_size"] for each in told] == ["auto", 4096]


# --- refused ---------------------------------------------------------------------------------------


def test_without_the_package_it_is_refused_with_what_to_type(monkeypatch):
    has = host.has
    monkeypatch.setattr(host, "has", lambda module: module != "deepspeed" and has(module))
    assert compose(*small(*TWO)).problems == [MISSING]


def test_nothing_else_is_refused():
    assert problems() == []
    assert problems("parallelism.stage=3", "accumulation=x4", "checkpointing=full", "precision=bf16", "optim=sgd") == []


@pytest.mark.parametrize(
    "words,instead",
    [
        (["optim=adafactor"], "optim=adamw"),
        (["precision=bf16_pure"], "precision=bf16"),
        (["precision.adapter=fp32", "precision=bf16", "adapter=lora"], "precision.adapter out"),
        (["adapter.dora=true", "adapter=lora", "parallelism.stage=3"], "parallelism.stage=2"),
        (["precision.reduction=fp32", "precision=bf16"], "parallelism=fsdp"),
        (["eval.precision=bf16"], "Leave it out"),
        (["parallelism.offload=optimizer"], "Leave it out"),
        (["save.every_steps=2"], "parallelism=fsdp"),
        (["resume=latest"], "parallelism=fsdp"),
        (["parallelism.live_parameters=5"], "parallelism.stage=3"),
        (["parallelism.stage=4"], "1, 2, 3"),
        (["parallelism.strategy=full_shard"], "parallelism=fsdp"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_would_mean_something_else_is_refused(words, instead):
    found = problems(*words)
    assert len(found) == 1 and words[0].split("=")[0] in found[0] and instead in found[0], found


def test_only_stage_3_moves_weights(pretend_gpu):
    pretend_gpu((8, 0))
    told = ["device=cuda", "parallelism.num_processes=1", "parallelism.offload=all"]
    assert ["parallelism.stage=3" in problem for problem in problems(*told)] == [True]
    assert problems(*told, "parallelism.stage=3") == []


def test_fp16_is_refused(pretend_gpu):
    pretend_gpu((8, 0))
    found = problems("device=cuda", "parallelism.num_processes=1", "precision=fp16")
    assert len(found) == 1 and "precision=bf16" in found[0]


# --- what DeepSpeed is told ------------------------------------------------------------------------


def told(*overrides: str) -> dict:
    return zero.configuration(compose(*small(*TWO, *overrides)).cfg)


def test_deepspeed_is_told_what_the_recipe_is():
    configuration = told("batch.effective=16", "train.max_grad_norm=0.5")
    assert configuration["train_micro_batch_size_per_gpu"] == 2
    assert configuration["gradient_accumulation_steps"] == 4
    assert configuration["gradient_clipping"] == 0.5
    assert configuration["zero_optimization"]["stage"] == 2
    assert "offload_param" not in configuration["zero_optimization"]
    assert told("train.max_grad_norm=0")["gradient_clipping"] == 0


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("offload", ["none", "optimizer", "all"])
def test_each_stage_is_told_what_it_moves(stage, offload):
    if offload == "all" and stage < 3:
        return  # refused
    found = told(f"parallelism.stage={stage}", f"parallelism.offload={offload}")["zero_optimization"]
    assert found["stage"] == stage
    assert found["offload_optimizer"]["device"] == ("none" if offload == "none" else "cpu")
    weights = found.get("offload_param")
    assert weights == ({"device": "cpu" if offload == "all" else "none"} if stage == 3 else None)


def test_what_is_not_saved_and_what_the_ledger_does_not_see_is_said():
    cfg = compose(*small(*TWO)).cfg
    quiet = {"save.on_signal=false": "no checkpoint when a signal", "measure.ledger=false": "the ledger counts only"}
    assert [line.startswith("parallelism=zero") for line in zero_rules.warnings(cfg)] == [True, True]
    for off, word in quiet.items():
        assert any(word in line for line in zero_rules.warnings(cfg))
        assert not any(word in line for line in zero_rules.warnings(compose(*small(*TWO, off)).cfg))


def test_bf16_is_deepspeeds_own_mode_or_autocast():
    own = told("precision=bf16")
    assert own["bf16"] == {"enabled": True} and not own["torch_autocast"]["enabled"] and not own["fp16"]
    autocast = told("precision=bf16", "precision.weights=fp32")
    assert not autocast["bf16"] and autocast["torch_autocast"]["enabled"] and not autocast["fp16"]
    plain = told()
    assert not plain["bf16"] and not plain["torch_autocast"]["enabled"]


@pytest.mark.parametrize(
    "words, stored",
    [
        (["precision=bf16"], ("bf16", None, None, "fp32")),
        (["precision=bf16", "precision.weights=fp32"], ("fp32", None, None, None)),
        (["precision=bf16", "adapter=lora"], ("bf16", "bf16", "bf16", "fp32")),
        (["adapter=lora"], ("fp32", "fp32", "fp32", None)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_types_are_deepspeeds(words, stored):
    types = compose(*small(*TWO, *words)).cfg.precision
    assert (types.weights, types.base, types.adapter, types.copies) == stored


def test_offload_takes_what_it_says():
    everything = told("parallelism.stage=3", "parallelism.offload=all")["zero_optimization"]
    assert everything["offload_param"]["device"] == everything["offload_optimizer"]["device"] == "cpu"
    states = told("parallelism.stage=3", "parallelism.offload=optimizer")["zero_optimization"]
    assert (states["offload_param"]["device"], states["offload_optimizer"]["device"]) == ("none", "cpu")


# --- two ranks, where the package is ---------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(
    "words",
    [
        ["model=gpt2_tiny"],
        ["model=bert_tiny", "accumulation=x2", "data.samples=13"],
        ["model=llama_tiny", "optim=sgd", "train.learning_rate=0.5", "precision=bf16", "precision.weights=fp32"],
        ["model=llama_tiny", "adapter=lora", "train.learning_rate=0.01"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_two_ranks_train_as_one(run, recipe, stage, words):
    """With a last step that is short, and clipping; learning rates that move the loss."""
    job = [f"recipe={recipe}", *words, "model.layers=2", "train.max_steps=5", "eval.batch=3", "save.final=true"]
    if not INSTALLED:
        assert compose(*small(*job, *TWO, f"parallelism.stage={stage}")).problems == [MISSING]
        return
    alone, together = (
        run(*job, "batch.per_device=4"),
        run(*job, *TWO, f"parallelism.stage={stage}", "batch.per_device=2"),
    )
    one, two = alone.record, together.record
    relative = 1e-4 if two.config["precision"]["name"] == "fp32" else 1e-3
    assert len(one.training.losses) == 5
    assert two.training.losses == pytest.approx(one.training.losses, rel=relative)
    assert (two.training.samples, two.training.tokens) == (one.training.samples, one.training.tokens)
    assert two.evaluation.loss == pytest.approx(one.evaluation.loss, rel=relative)
    assert two.memory.optimizer_bytes == pytest.approx(one.memory.optimizer_bytes / 2, rel=0.01)
    assert (two.memory.weights_bytes < 0.6 * one.memory.weights_bytes) == (stage == 3)
    file = "adapter_model.safetensors" if "adapter=lora" in words else "model.safetensors"
    weights, same = (load_file(run.folder / "model" / file) for run in (alone, together))
    assert weights.keys() == same.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(same[name], weight, rtol=relative, atol=relative)


def test_stage_3_gathers_as_little_as_it_is_told(run):
    job = [*TWO, "parallelism.stage=3", "model=llama_tiny", "model.layers=6", "model.width=64", "model.vocab=4096"]
    if not INSTALLED:
        assert compose(*small(*job)).problems == [MISSING]
        return
    much, little = (run(*job, *words).record for words in ([], ["parallelism.live_parameters=1"]))
    assert little.training.losses == pytest.approx(much.training.losses, rel=1e-6)
    copies = [record.memory.largest_bytes["weight_copies"] for record in (much, little)]
    assert copies[1] < 0.9 * copies[0], copies
