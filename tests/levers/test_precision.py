"""precision: what the hardware can do, and in which floats the weights, gradients and states are kept."""

from __future__ import annotations

import pytest
from conftest import compose

from legroom.foresight import advice
from legroom.machine import host


def lines_of(*overrides) -> str:
    return "\n".join(compose(*overrides).problems)


# --- what the hardware can do ----------------------------------------------------------------------


@pytest.mark.parametrize("capability", [(6, 0), (7, 0), (7, 5)])
@pytest.mark.parametrize(
    "option,instead", [("bf16", "precision=fp16"), ("bf16_pure", "precision=fp16"), ("tf32", "precision=fp32")]
)
def test_an_old_card_refuses_what_came_with_ampere(pretend_gpu, capability, option, instead):
    pretend_gpu(capability, "NVIDIA Old")
    line = lines_of(f"precision={option}")
    assert f"precision={option}" in line and instead in line
    assert "NVIDIA Old" in line and f"{capability[0]}.{capability[1]}" in line


@pytest.mark.parametrize("option", ["fp32", "fp16"])
def test_an_old_card_does_the_rest(pretend_gpu, option):
    pretend_gpu((7, 5))
    assert compose(f"precision={option}").problems == []


@pytest.mark.parametrize("option", ["fp32", "tf32", "fp16", "bf16", "bf16_pure"])
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0)])
def test_a_newer_card_does_them_all(pretend_gpu, capability, option):
    pretend_gpu(capability)
    assert compose(f"precision={option}").problems == []


@pytest.mark.parametrize("option,instead", [("tf32", "precision=bf16"), ("fp16", "precision=bf16")])
def test_a_cpu_is_told_what_to_choose_also_beside_a_gpu(pretend_gpu, option, instead):
    pretend_gpu((9, 0))
    line = lines_of(f"precision={option}", "device=cpu")
    assert f"precision={option}" in line and instead in line


def test_flash_attention_needs_its_package(pretend_gpu, monkeypatch):
    pretend_gpu((9, 0))
    monkeypatch.setattr(host, "has", lambda module: module != "flash_attn")
    line = lines_of("model.attention=flash_attention_2", "precision=bf16")
    assert "flash-attn" in line and "pip install" in line and "model.attention=sdpa" in line


@pytest.mark.parametrize(
    "option,fine", [("fp32", False), ("tf32", False), ("fp16", True), ("bf16", True), ("bf16_pure", True)]
)
def test_flash_attention_works_in_16_bits_alone(pretend_gpu, monkeypatch, option, fine):
    pretend_gpu((9, 0))
    monkeypatch.setattr(host, "has", lambda module: True)
    line = lines_of("model.attention=flash_attention_2", f"precision={option}")
    assert (line == "") if fine else ("model.attention=flash_attention_2" in line and "precision=bf16" in line)


def test_flash_attention_needs_ampere(pretend_gpu, monkeypatch):
    """Its kernels are built for compute capability 8.0 and newer."""
    pretend_gpu((7, 5))
    monkeypatch.setattr(host, "has", lambda module: True)
    line = lines_of("model.attention=flash_attention_2", "precision=fp16")
    assert "model.attention=flash_attention_2" in line and "model.attention=sdpa" in line


# --- where the bytes go ----------------------------------------------------------------------------


def bytes_a_parameter(record, part) -> float:
    """The most that a part took at any moment of the step. AdamW's step counters (4 bytes a weight) round away."""
    return record.memory.largest_bytes[part] / record.memory.parameter_count


# Wide enough that counters and biases do not show.
WIDE = ["model=gpt2_tiny", "model.width=128", "model.feed_forward=512", "model.tied=false"]


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
@pytest.mark.parametrize(
    "option,weights,gradients,states", [("fp32", 4, 4, 8), ("bf16", 4, 4, 8), ("bf16_pure", 2, 2, 4)]
)
def test_bytes_a_parameter_with_adamw(train, recipe, option, weights, gradients, states):
    record = train(f"recipe={recipe}", f"precision={option}", *WIDE).record
    assert bytes_a_parameter(record, "parameters") == weights
    assert record.memory.weights_bytes == weights * record.memory.parameter_count
    assert bytes_a_parameter(record, "gradients") == gradients
    assert bytes_a_parameter(record, "optimizer") == pytest.approx(states, rel=0.001)


@pytest.mark.slow
def test_autocast_keeps_a_second_copy_of_the_weights_it_multiplies_with(train):
    """The guide's 6 bytes a parameter, for all but the embeddings: 128 x (512 + 64) weights here."""
    whole, mixed, pure = (train(f"precision={option}", *WIDE).record for option in ("fp32", "bf16", "bf16_pure"))
    multiplied = mixed.memory.parameter_count - 128 * (512 + 64)
    assert mixed.memory.largest_bytes["weight_copies"] == pytest.approx(2 * multiplied, rel=0.02)
    assert whole.memory.largest_bytes["weight_copies"] == pure.memory.largest_bytes["weight_copies"] == 0


@pytest.mark.slow_for("bert_tiny", "llama_tiny")
@pytest.mark.parametrize("model", ["bert_tiny", "gpt2_tiny", "llama_tiny"])
def test_16_bits_lose_about_the_same_with_smaller_activations(train, model):
    told = [f"model={model}", "batch.per_device=8", "data.seq_len=64", "model.vocab=256"]
    exact, mixed, pure = (train(*told, f"precision={option}").record for option in ("fp32", "bf16", "bf16_pure"))
    for other in (mixed, pure):
        assert other.training.losses == pytest.approx(exact.training.losses, rel=0.02)
        assert other.training.losses != exact.training.losses
        assert other.memory.largest_bytes["activations"] < 0.9 * exact.memory.largest_bytes["activations"]


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
@pytest.mark.parametrize("option", ["fp32", "tf32", "fp16", "bf16", "bf16_pure"])
def test_every_precision_trains_on_a_gpu_or_is_refused(train, recipe, option):
    told = [f"recipe={recipe}", f"precision={option}", "device=cuda", "train.max_steps=6"]
    if compose(*told).problems:
        assert f"precision={option}" in lines_of(*told)
        return
    record = train(*told, "model.width=256", "model.feed_forward=1024", "batch.per_device=8").record
    memory = record.memory
    assert record.training.losses[0] == pytest.approx(0.69, abs=0.3)
    # The allocator rounds up and keeps workspaces of the matrix library, so it holds no less than the tensors.
    assert 0.9 * memory.peak_tensor_bytes <= memory.peak_allocated_bytes <= memory.peak_reserved_bytes
    assert memory.device_used_bytes >= memory.peak_reserved_bytes and memory.context_bytes > 0


@pytest.mark.parametrize("capability,named", [((8, 0), "precision=bf16"), ((7, 5), "precision=fp16")])
def test_the_hint_names_the_16_bits_of_the_card(pretend_gpu, capability, named):
    pretend_gpu(capability)
    levers = advice.untried(compose("device=cuda").cfg, "backward").split("first: ")[1].split(", ")
    assert named in levers and len([lever for lever in levers if "precision=" in lever and "pure" not in lever]) == 1
