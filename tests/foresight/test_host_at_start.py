"""What a training needs of its host's memory at least, said before it loads anything."""

from __future__ import annotations

import pytest
from conftest import bare_model, compose, small

from legroom.foresight import host_at_start
from legroom.machine import host
from legroom.units import GIB

WEIGHTS = 335_143_938 * 4 / GIB  # bert_large in fp32
MERGED = ["model=gpt2", "save.final=true", "save.merge=true", "adapter=lora", "eval.enabled=false"]


@pytest.mark.parametrize(
    "overrides, free, said",
    [
        (["model=bert_tiny"], GIB // 1000, "control group"),
        (["model=bert_tiny"], GIB, None),
        (["model=bert_large"], 4 * GIB, f"'step' needs at least {4 * WEIGHTS:.2f} GiB"),  # weights, gradients, states
        (["model=bert_large", "adapter=lora"], 5 * GIB, None),
        (["model=bert_large", "launch.memory_limit_gib=3"], 64 * GIB, "launch.memory_limit_gib"),
        (["model=llama_8b", "precision=bf16_pure"], 64 * GIB, "at least"),
        (["model=bert_large", "save.every_steps=5"], 6 * GIB, f"'checkpoint' needs at least {6 * WEIGHTS:.2f} GiB"),
        (["model=bert_large", "save.every_steps=5", "optim=sgd"], 5 * GIB, None),
        # the checkpoint behind the last step, which is there until the model is saved
        (["model=bert_large", "save.final=true"], 6 * GIB, "'checkpoint'"),
        (MERGED, GIB // 2, "save.merge=false"),
        ([each for each in MERGED if each != "save.merge=true"], GIB // 2, None),
        (["model=gpt2", "eval.batch=64", "data.eval_samples=64"], 4 * GIB, "eval.batch"),  # 12 GiB of logits
        (["model=gpt2", "eval.batch=64", "data.eval_samples=64", "loss=chunked"], 4 * GIB, None),
        (["model=gpt2", "eval.batch=64", "data.eval_samples=2"], 4 * GIB, None),
        (["model=llama_8b"], None, None),  # nobody knows
        (["model=llama_8b", "launch.memory_limit_gib=1"], None, "1.00 GiB are allowed by launch.memory_limit_gib"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_more_than_is_free_is_said_before_anything_is_loaded(monkeypatch, overrides, free, said):
    monkeypatch.setattr(host, "free_memory_bytes", lambda: free)
    found = host_at_start.shortage(compose("device=cpu", *overrides).cfg, 1)
    assert found is None if said is None else said in (found or "")


@pytest.mark.parametrize(
    "words, of_each",
    [
        (["model=bert_tiny"], 4),
        (["model=gpt2_tiny"], 4),  # its output layer is the embeddings
        (["model=llama_tiny", "precision=bf16_pure"], 2),
        (["model=llama_tiny", "adapter=qlora"], 0.5),
    ],
)
def test_weights_take_the_bytes_of_their_type(words, of_each):
    cfg = compose(*small(*words)).cfg
    kept_whole = compose(*small(words[0])).cfg
    count = sum(weight.numel() for weight in bare_model(kept_whole)[0].parameters())
    assert host_at_start.weight_bytes(cfg) == int(count * of_each)


def bytes_of(phases, phase):
    return sum(phases[phase].values())


def test_sharded_and_replicated_weights():
    words = ["device=cpu", "model=bert_tiny", "parallelism.num_processes=2", "save.final=true", "optim=sgd"]
    ddp, fsdp = (host_at_start.needs(compose(*words, f"parallelism={mode}").cfg, 2) for mode in ("ddp", "fsdp"))
    weights = bytes_of(ddp, "loading") / 2
    assert bytes_of(ddp, "step") == 2 * bytes_of(fsdp, "step") == 4 * weights  # weights and gradients of each rank
    assert bytes_of(ddp, "final save") == 2 * weights
    assert bytes_of(fsdp, "final save") == 2 * weights  # the shards, and the whole weights on rank 0


def test_states_that_are_offloaded_are_shared_out_between_the_ranks():
    """ZeRO loads the whole weights on each rank; one copy of gradients and states is on the host of all."""
    words = ["recipe=estimate", "gpu=a100_80gb", "model=bert_tiny", "parallelism=zero", "parallelism.stage=3"]
    cfg = compose(*words, "parallelism.offload=optimizer", "parallelism.num_processes=4").cfg
    weights = bytes_of(host_at_start.needs(cfg, 1), "loading")
    phases = host_at_start.needs(cfg, 4)
    assert bytes_of(phases, "loading") == 4 * weights
    assert bytes_of(phases, "step") == pytest.approx(3 * weights, rel=0.01)  # gradients and two states


@pytest.mark.parametrize("overrides", [["model=gpt2"], ["model=gpt2", "save.every_steps=2"], MERGED])
def test_an_estimate_has_as_much_in_each_phase(predicted, overrides):
    """The same phases and the same rules; an estimate has activations and the libraries beside that."""
    typed = ["device=cpu", "batch.per_device=1", "data.seq_len=32", *overrides]
    least = host_at_start.needs(compose("recipe=accelerate", *typed).cfg, 1)
    phases = {each["phase"]: each["host_bytes"] for each in predicted(*typed).memory.phases}
    for phase in ("step", "checkpoint", "final save"):
        if phase in least:
            assert bytes_of(least, phase) <= phases[phase] < bytes_of(least, phase) + 1.5 * GIB


def test_the_warning_is_in_the_record(train):
    sizes = ["model.width=512", "model.feed_forward=2048", "model.layers=2"]  # some 100 MiB; what is said takes some
    run = train("launch.memory_limit_gib=0.05", *sizes, status=None)
    assert any("launch.memory_limit_gib" in text for text in run.record.warnings)
