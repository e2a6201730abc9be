"""parallelism.experts: experts over ranks train as those of one process, and what does not go with them is refused."""

from __future__ import annotations

import as_one
import pytest
from conftest import compose

from legroom.machine import host

MIXED = ["model=mixtral_tiny", "batch.effective=8", "data.samples=16", "train.learning_rate=0.1", "train.max_steps=3"]
RANKS = ["parallelism=fsdp", "parallelism.num_processes=2", "parallelism.experts=2"]


@pytest.fixture(scope="module")
def alone(train):
    return train(*MIXED, "optim=sgd", "batch.per_device=8", "save.final=true")


@pytest.mark.parametrize(
    "words",
    [
        "recipe=trainer",
        "recipe=accelerate parallelism.strategy=shard_grad_op eval.every_steps=1",
        pytest.param("recipe=trainer parallelism.num_processes=4 batch.per_device=1", marks=pytest.mark.slow),
        pytest.param("recipe=accelerate parallelism.num_processes=4 parallelism.experts=4", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_share_out_the_experts_train_as_one(train, alone, words):
    """With clipping, whose norm is over the weights of all ranks."""
    typed = {word.partition("=")[0] for word in words.split()}
    mode = [word for word in (*RANKS, "batch.per_device=2") if word.partition("=")[0] not in typed]
    run = train(*MIXED, "optim=sgd", "save.final=true", *mode, *words.split())
    as_one.assert_trained_as_one(run, alone)
    as_one.assert_same_flops(run, alone)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3_30b_a3b", "gpt_oss_20b"])
def test_other_families_share_out_their_experts(train, model):
    """Qwen's tensors are Mixtral's; those of GPT-OSS are transposed, and have biases."""
    sizes = [f"model={model}", "model.experts=4", "model.experts_per_token=2", "model.kv_heads=2"]
    words = [*MIXED[1:], *sizes, "optim=sgd", "batch.per_device=2"]
    one, two = (train(*words, *mode).record.training for mode in ([], RANKS))
    assert two.losses == pytest.approx(one.losses, rel=1e-5)


def test_a_rank_gathers_no_experts_of_others(train):
    """Which is what FSDP alone does: the copies of weights are smaller by the others' experts."""
    wide = [*MIXED, "model.feed_forward=512", "parallelism=fsdp", "parallelism.num_processes=2", "batch.per_device=1"]
    gathered, shared = (train(*wide, *more).record.memory for more in ([], ["parallelism.experts=2"]))
    experts = 4 * 3 * 32 * 512 * 4  # bytes of those of a layer
    assert shared.weights_bytes == pytest.approx(gathered.weights_bytes, rel=0.01)
    saved = gathered.largest_bytes["weight_copies"] - shared.largest_bytes["weight_copies"]
    assert saved > 0.45 * experts


@pytest.mark.parametrize(
    "words,said",
    [
        ("model=llama_tiny", "has no experts"),
        ("model=mixtral_tiny model.experts=3", "model.experts=3 cannot be split"),
        ("model=mixtral_tiny parallelism.num_processes=3", "3 ranks cannot be put into groups"),
        ("model=mixtral_tiny parallelism.wrap=size", "parallelism.wrap=layer"),
        ("model=mixtral_tiny parallelism.strategy=hybrid_shard parallelism.shard_size=1", "full_shard"),
        ("model=mixtral_tiny parallelism.strategy=no_shard", "experts and cpu_offload are not used"),
        ("model=mixtral_tiny adapter=lora", "adapter=lora"),
        ("model=mixtral_tiny compile=true", "compile"),
        ("model=mixtral_tiny parallelism=ddp", "parallelism.experts"),
    ],
)
def test_it_is_refused_in_words(words, said):
    typed = {word.partition("=")[0] for word in words.split()}
    mode = [word for word in (*RANKS, "launch.oversubscribe=true") if word.partition("=")[0] not in typed]
    problems = compose("device=cpu", *mode, *words.split()).problems
    assert any(said in line for line in problems), problems


def test_an_older_transformers_is_named(monkeypatch):
    version = host.version
    monkeypatch.setattr(host, "version", lambda name: "5.17.0" if name == "transformers" else version(name))
    problems = compose("device=cpu", *RANKS, "model=mixtral_tiny").problems
    assert any("transformers>=5.23" in line and "5.17.0" in line for line in problems), problems


def test_a_model_without_a_plan_is_refused_when_it_is_loaded(train, saved_llama):
    refused = train(f"model.pretrained={saved_llama}", *RANKS, "batch.per_device=2", status="refused").record
    assert "no plan for experts of LlamaForCausalLM" in refused.error.message


def test_pretrained_experts_are_shared_out(train, alone):
    words = [*MIXED[1:], f"model.pretrained={alone.folder / 'model'}", "batch.per_device=2"]
    one, two = (train(*words, *mode).record.training for mode in ([], RANKS))
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
