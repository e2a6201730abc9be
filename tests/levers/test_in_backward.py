"""optim.in_backward: the step of each weight inside the backward pass, in both recipes, counted and refused."""

from __future__ import annotations

import shutil

import pytest
from conftest import CONF, compose
from test_ledger_pairs import differing, fake, real
from test_menus import cannot_run_here, facts_of
from test_optimizer import both

from legroom.foresight import simulation
from legroom.options import hooks, menus

HERE = ["optim.in_backward=true", "train.max_grad_norm=0"]
WITH_KEY = [
    name for name in menus.options("optim", [CONF]) if "in_backward" in menus.option_values("optim", name, [CONF])
]

QUICK = dict.fromkeys(("adamw", "adam8bit", "muon", "adamw4bit"), ())  # the kinds of optimizers; the others are slow


@pytest.mark.parametrize(
    "options",
    [
        *[
            pytest.param(
                [f"optim={name}", "model=gpt2_tiny", "model.width=64"], marks=QUICK.get(name, pytest.mark.slow)
            )
            for name in WITH_KEY
        ],
        ["model=llama_tiny", "checkpointing=selective", "loss=chunked", "precision=bf16"],
        ["model=llama_tiny", "adapter=lora", "adapter.dora=true", "checkpointing=offload"],
        ["model=mixtral_tiny", "checkpointing=full", "precision=bf16_pure", "model.tied=true"],
    ],
    ids=" ".join,
)
def test_both_recipes_have_the_losses_of_an_ordinary_step(tmp_path, options):
    """To the bit; and all gradients are gone afterwards."""
    if options[0].startswith("optim=") and cannot_run_here(facts_of(tuple(options[0].split("=")))):
        pytest.skip(f"the package of {options[0]} is not installed")
    options = [*options, "train.learning_rate=0.01", "train.weight_decay=0.1", "train.max_grad_norm=0"]
    after, _ = both(tmp_path, *options)
    for loop in both(tmp_path, *options, *HERE[:1]):
        assert all(weight.grad is None for weight in loop.bare_model.parameters())
        for ours, theirs in zip(loop.bare_model.parameters(), after.bare_model.parameters(), strict=True):
            assert ours.equal(theirs)


@pytest.mark.parametrize("options", [["model=gpt2_tiny", "optim=adamw"], ["model=llama_tiny", "optim=lion8bit"]])
def test_no_gradient_outlives_the_step_of_its_weight(tmp_path, options):
    options = [*options, "model.layers=4", "model.width=64", "model.vocab=64", "train.max_grad_norm=0"]
    counted, whole = real([*options, *HERE], tmp_path), real(options, tmp_path)
    at_most, before = (parts["largest_bytes"]["gradients"] for parts in (counted, whole))
    assert before == counted["weights_bytes"] and at_most < before / 4
    foreseen = fake([*options, *HERE], tmp_path)
    assert not differing(counted, foreseen) and foreseen["largest_bytes"]["gradients"] == at_most
    assert counted["peak_tensor_bytes"] < whole["peak_tensor_bytes"]


@pytest.mark.parametrize(
    "options,said",
    [
        (["optim.in_backward=true"], "train.max_grad_norm=0"),
        ([*HERE, "accumulation=x2"], "accumulation"),
        ([*HERE, "parallelism=ddp", "parallelism.num_processes=2"], "parallelism=ddp"),
        ([*HERE, "parallelism=fsdp", "parallelism.strategy=no_shard"], "no_shard"),
        ([*HERE, "precision=fp16", "recipe=estimate", "gpu=l4_24gb"], "precision=fp16"),
        ([*HERE, "compile=true", "recipe=estimate"], "compile=true"),
        ([*HERE, "parallelism=zero", "recipe=estimate", "gpu=l4_24gb"], "parallelism=zero"),
        ([*HERE, "parallelism=fsdp", "parallelism.cpu_offload=true"], "parallelism.cpu_offload=true"),
    ],
    ids=str,
)
def test_what_needs_all_gradients_is_refused(options, said):
    device = [] if "gpu=l4_24gb" in options else ["device=cpu"]
    problems = compose(*options, *device).problems
    assert any("optim.in_backward=true" in line and said in line for line in problems)


@pytest.mark.parametrize("name", ["paged_adam8bit", "paged_adamw", "paged_lion8bit"])
def test_paged_states_lie_outside_the_allocator_in_backward(tmp_path, name):
    pytest.importorskip("bitsandbytes")
    words = ["model=llama_tiny", "model.width=512", "model.layers=2", "precision=bf16_pure", "gpu=l4_24gb"]
    words += ["recipe=estimate", f"optim={name}", "train.max_grad_norm=0"]
    after, inside = (
        simulation.simulate_step(compose(*words, *more).cfg, str(tmp_path)) for more in ([], ["optim.in_backward=true"])
    )
    assert after.paged_bytes == inside.paged_bytes > 0
    assert inside.parts["largest_bytes"]["gradients"] < after.parts["largest_bytes"]["gradients"] / 2
    assert inside.demand.peak_allocated_bytes < after.demand.peak_allocated_bytes


def test_a_hint_takes_clipping_away_with_it_and_says_so():
    def levers(*overrides):
        found = hooks.memory_levers(compose("device=cpu", *overrides).cfg)
        return {lever.overrides: lever for lever in found if "in_backward" in lever.overrides}

    (with_clipping,) = levers().values()
    assert with_clipping.overrides == "optim.in_backward=true train.max_grad_norm=0"
    (without,) = levers("train.max_grad_norm=0").values()
    assert without.overrides == "optim.in_backward=true" and without.cost < with_clipping.cost
    assert not levers(*HERE) and not levers("accumulation=x2")


@pytest.mark.parametrize("recipe,optim", [("trainer", "adamw"), ("accelerate", "adam8bit")])
def test_resuming_with_steps_in_backward_ends_the_same(train, again, tmp_path, recipe, optim):
    """The files of the last checkpoint are the same, byte for byte."""
    words = [
        f"recipe={recipe}",
        f"optim={optim}",
        "model=gpt2_tiny",
        "model.width=64",
        "train.max_steps=4",
        "train.max_grad_norm=0",
    ]
    words += ["train.schedule=cosine", "train.weight_decay=0.1", "measure.ledger=false", "save.every_steps=2"]
    ordinary = train(*words)
    first, second = (folder / "checkpoints" for folder in (ordinary.folder, tmp_path))
    shutil.copytree(first / "step-00000002", second / "step-00000002")
    resumed, _ = again(tmp_path, *words, *HERE, "resume=latest")
    assert resumed.training.resumed_from_step == 2
    assert resumed.training.losses == ordinary.record.training.losses
    for kind in ("weights", "optimizer"):
        ours, theirs = (folder / f"step-00000004/rank-0.{kind}.safetensors" for folder in (second, first))
        assert ours.read_bytes() == theirs.read_bytes(), kind


def test_after_the_reduction_of_fsdp(train):
    """Two ranks have the losses of the ordinary step; the gradients of a layer are freed together.

    Gloo's thread may hold the gradients of one layer for a moment after the reduction of it: eight layers and few
    activations, so that what the ordinary step keeps is several times that.
    """
    words = ["parallelism=fsdp", "parallelism.num_processes=2", "model=gpt2_tiny", "model.layers=8", "model.width=64"]
    words += ["train.max_grad_norm=0", "train.learning_rate=0.01", "model.vocab=64", "data.seq_len=4"]
    words += ["batch.per_device=1"]
    after, inside = train(*words).record, train(*words, *HERE).record
    assert inside.training.losses == after.training.losses
    assert inside.memory.peak_tensor_bytes < after.memory.peak_tensor_bytes
    gradients = [record.memory.largest_bytes["gradients"] for record in (inside, after)]
    assert gradients[0] < gradients[1] / 3
