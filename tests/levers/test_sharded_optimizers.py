"""Optimizers that work on blocks or on whole matrices: with FSDP2 they compute what they compute unsharded."""

from __future__ import annotations

import pytest
from conftest import compose

from legroom.machine import host

TWO = "parallelism.num_processes=2"
# Half of each matrix has whole blocks of 256, of 4,096 numbers and more.
WIDE = [
    "model=llama_tiny",
    "model.width=128",
    "model.heads=4",
    "model.kv_heads=4",
    "model.feed_forward=256",
    "train.max_steps=3",
    "train.learning_rate=0.01",
    "train.max_grad_norm=0",  # the norm of shards is added up in another order
    "eval.enabled=false",
]
AO = ("adamw8bit_ao", "adamw4bit", "adamw_fp8")


@pytest.mark.slow_for(
    "trainer-muon", "accelerate-adamw_fp8", "trainer-adamw_fp8", "trainer-adamw4bit", "accelerate-adamw4bit"
)
@pytest.mark.parametrize("optim", ["muon", *AO])
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_sharded_weights_are_trained_as_whole_ones_are(train, recipe, optim):
    """Bit for bit: DDP's ranks have the same gradients, in whole weights."""
    if optim in AO and not host.has("torchao"):
        pytest.skip("torchao is not installed")
    words = [*WIDE, f"recipe={recipe}", f"optim={optim}", TWO]
    whole, sharded = (train(*words, f"parallelism={mode}").record for mode in ("ddp", "fsdp"))
    assert sharded.training.losses == whole.training.losses
    assert len(set(whole.training.losses)) == 3
    assert sharded.memory.optimizer_bytes < 0.6 * whole.memory.optimizer_bytes


@pytest.mark.parametrize(
    "words,instead",
    [
        (["parallelism=fsdp_tp", "parallelism.tensor_size=2"], "Choose parallelism=fsdp, or optim=adamw."),
        (["parallelism=zero"], "Choose optim=adamw, or parallelism=fsdp."),
    ],
)
def test_blocks_of_rows_are_refused_where_rows_are_divided(words, instead):
    problems = compose("device=cpu", "model=llama_tiny", "optim=adamw8bit_ao", TWO, *words).problems
    assert any(line.startswith("optim=adamw8bit_ao") and line.endswith(instead) for line in problems), problems


@pytest.mark.parametrize("optim", ["muon", *AO])
def test_fsdp_is_not_refused(optim):
    assert not compose("device=cpu", "model=llama_tiny", f"optim={optim}", TWO, "parallelism=fsdp").problems
