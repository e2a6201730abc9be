"""precision=fp8: where it is refused, and on a played GPU that both recipes train with 8-bit products.

torch has those products on a CPU too, so that a played GPU computes them.
"""

from __future__ import annotations

import pytest
from conftest import compose

from legroom.machine import host
from legroom.options import validate

pytest_plugins = ["gpu_fixtures"]
pytestmark = pytest.mark.skipif(not host.has("torchao"), reason="torchao is not installed")
FP8 = ["precision=fp8", "model.width=32", "model.feed_forward=64", "batch.per_device=4"]


@pytest.fixture
def card(pretend_gpu, monkeypatch):
    pretend_gpu((9, 0))
    monkeypatch.setattr(host, "has", lambda module: True)


def problem(*words: str) -> str:
    return "\n".join(compose("precision=fp8", *words).problems)


@pytest.mark.slow
def test_both_recipes_train_in_8_bits_and_lose_about_the_same(on_gpu):
    words = [*FP8, "model=bert_tiny", "train.max_steps=3"]
    ours, theirs = (on_gpu(*words, f"recipe={recipe}").record for recipe in ("trainer", "accelerate"))
    wide = on_gpu("precision=bf16", *words[1:], "recipe=accelerate").record
    assert ours.training.losses == theirs.training.losses
    assert ours.training.losses != wide.training.losses, "products in 8 bits round"
    assert ours.training.losses == pytest.approx(wide.training.losses, rel=0.05)
    for record in (ours, theirs):
        assert record.memory.largest_bytes["gradients"] == wide.memory.largest_bytes["gradients"] > 0


@pytest.mark.slow
def test_beside_other_levers(on_gpu):
    levers = [
        "model=llama_tiny",
        "checkpointing=full",
        "loss=chunked",
        "loss.rows=16",
        "accumulation=x2",
        "save.final=true",
    ]
    ours, theirs = (on_gpu(*FP8, *levers, f"recipe={recipe}").record for recipe in ("trainer", "accelerate"))
    assert ours.training.losses == theirs.training.losses and ours.memory.activations_bytes


def test_a_model_without_such_layers_is_refused(on_gpu):
    error = on_gpu(
        "precision=fp8", "model=bert_tiny", "model.width=24", "model.feed_forward=40", status="refused"
    ).record.error
    assert "multiples of 16. Choose precision=bf16." in error.message


@pytest.mark.parametrize(
    "words, said",
    [
        (["adapter=lora"], "Choose precision=bf16."),
        (["parallelism=fsdp", "parallelism.num_processes=1"], "Choose parallelism=ddp"),
        (["checkpointing=selective"], "Choose checkpointing=full."),
        (["model=gpt2_tiny"], "Choose precision=bf16."),
        (["model=mixtral_tiny"], "Choose precision=bf16."),
        (["recipe=estimate", "gpu=h100_80gb"], "recipe=estimate does not support precision=fp8"),
        (["device=cpu"], "precision=fp8 needs a GPU"),
    ],
)
def test_where_it_cannot_be_it_says_what_to_type(card, words, said):
    assert said in problem("model=llama_tiny", *words)


def test_without_compilation_it_warns(card):
    found = validate.warnings(compose("precision=fp8").cfg)
    assert any("slower than bf16" in text and "Type compile=true." in text for text in found)
    assert not any("slower" in text for text in validate.warnings(compose("precision=fp8", "compile=true").cfg))


def test_an_older_card_or_a_machine_without_torchao_is_told(pretend_gpu, monkeypatch):
    pretend_gpu((8, 6), "NVIDIA Ampere")
    monkeypatch.setattr(host, "has", lambda module: True)
    assert "compute capability 8.9 or newer; NVIDIA Ampere has 8.6. Choose precision=bf16." in problem()
    pretend_gpu((8, 9))
    assert problem() == ""
    monkeypatch.setattr(host, "has", lambda module: module != "torchao")
    assert problem() == "precision=fp8 needs the package torchao: pip install torchao, or choose precision=bf16."
