"""The fake step against the real one, on a CPU: for every pair of options the ledger counts the same.

Both are the raw loop's step under the ledger; the fake one is what `recipe=estimate device=cpu` predicts.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from chat import talk, write
from conftest import compose, small
from test_menus import OPTIONS, PAIRS, cannot_run_here, covering, facts_of, refused, told, words  # noqa: F401  (fixtures)

from legroom.estimator.ledger.memory_ledger import MemoryLedger
from legroom.foresight import simulation
from legroom.parallelism import unwrap
from legroom.training import accelerate_loop, setup

FIVE = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "other_bytes")
PARTS = 4  # a test each, for the sake of the time limit
SAME = {"recipe": "accelerate", "parallelism": "single", "tracker": "none"}  # menus that change no step of one process


def real(options: list[str], folder) -> dict:
    """The ledger's parts of a second step of the raw loop, on the CPU."""
    cfg, _, problems = compose(*small("recipe=accelerate", *options))
    assert not problems, problems
    training = setup.build(cfg, str(folder))
    loop = training.loop
    assert isinstance(loop, accelerate_loop.Loop)
    loop.model.train()
    unwrap.start_training(loop.optimizer)
    loop.step(next(accelerate_loop.chunks(loop.loader, training.args.gradient_accumulation_steps)))
    ledger = MemoryLedger(training.model, unwrap.inner_optimizer(loop.optimizer), torch.device("cpu"))
    loop.one_more_step(ledger)
    return ledger.parts()


def fake(options: list[str], folder) -> dict:
    """The same of a step that does not take place."""
    cfg, _, problems = compose(*small("recipe=estimate", *options))
    assert not problems, problems
    return simulation.simulate_step(cfg, str(folder)).parts


def differing(counted: dict, foreseen: dict) -> dict:
    """The parts that differ by more than 1 % of the peak."""
    peak = counted["peak_tensor_bytes"]
    return {
        name: (counted[name], foreseen[name])
        for name in (*FIVE, "peak_tensor_bytes")
        if abs(counted[name] - foreseen[name]) > 0.01 * peak
    }


@pytest.fixture(scope="module")
def jobs(refused):
    """Menu -> option, so that together they hold every pair that can run on a CPU."""
    allowed = [
        pair
        for pair in PAIRS
        if pair not in refused and all(SAME.get(group, option) == option for group, option in pair)
    ]
    found = [job | SAME for job in covering(allowed, refused)]
    seen = {frozenset(pair) for job in found for pair in itertools.combinations(job.items(), 2)}
    assert set(allowed) <= seen
    return found


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.slow
def test_every_pair_of_options_counts_the_same(jobs, told, tmp_path, part):
    wrong = {}
    for job in jobs[part::PARTS]:
        chosen = [word for word in told(job.items()) if not word.startswith("recipe=")]
        # Wide enough for 8-bit states, and with dropout, which the tiny models lack.
        options = [*chosen, "model.width=64", "model.dropout=0.1"]
        found = differing(real(options, tmp_path), fake(options, tmp_path))
        if found:
            wrong[" ".join(words(job.items()))] = found
    assert not wrong


@pytest.mark.slow_for("model=llama_tiny loss=chunked loss.rows=8 model.vocab=4096 accumulation.steps=2")
@pytest.mark.parametrize(
    "options",
    [
        ["train.max_grad_norm=0"],
        ["accumulation.steps=3", "batch.per_device=1"],
        ["model.attention=eager", "precision=bf16"],
        ["data.samples=3"],
        ["model=llama_tiny", "model.attention=eager", "checkpointing=full"],
        ["model=llama_tiny", "adapter=lora", "precision=bf16", "optim=adamw_fused", "checkpointing=full"],
        ["model=llama_tiny", "model.width=64", "adapter=qlora", "precision=bf16", "checkpointing=selective"],
        ["model=gpt2_tiny", "adapter=lora", "adapter.dora=true"],  # drops a graph in each forward pass
        ["model=bert_tiny", "model.width=64", "adapter=qlora", "adapter.bits=8", "precision=bf16_pure"],
        ["model=llama_tiny", "precision=bf16", "checkpointing=selective", "model.layers=2"],
        ["model=llama_tiny", "precision=bf16", "checkpointing=selective_half", "model.layers=2"],
        ["model=llama_tiny", "precision=bf16", "checkpointing=full", "checkpointing.mlp_tiles=4", "model.layers=2"],
        [
            "model=llama_tiny",
            "precision=bf16",
            "checkpointing=offload",
            "model.layers=3",
            "checkpointing.every_n_layers=2",
        ],
        ["model=llama_tiny", "loss=chunked", "loss.rows=8", "model.vocab=4096", "accumulation.steps=2"],
        ["model=gpt2_tiny", "model.width=64", "optim=adam8bit", "precision=bf16_pure", "loss=chunked"],
        ["model=mixtral_tiny", "precision=bf16", "optim=adafactor"],
        ["model=mixtral_tiny", "model.width=64", "adapter=qlora", "adapter.expert_rank=8", "precision=bf16"],
        ["model=mixtral_tiny", "model.width=64", "adapter=qlora", "adapter.expert_bits=8", "checkpointing=full"],
    ],
    ids=" ".join,
)
def test_settings_count_the_same(options, tmp_path):
    assert not differing(real(options, tmp_path), fake(options, tmp_path))


@pytest.mark.slow_for(
    "model.attention=eager checkpointing=full-gpt2_tiny",
    "model.attention=eager checkpointing=full-llama_tiny",
    "precision=bf16-llama_tiny",
)
@pytest.mark.parametrize("model", ["llama_tiny", "gpt2_tiny"])
@pytest.mark.parametrize("more", [["precision=bf16"], ["model.attention=eager", "checkpointing=full"]], ids=" ".join)
def test_packed_rows_count_the_same(tmp_path, model, more):
    talks = write(tmp_path / "talks.jsonl", [talk("q" * (n % 7 + 1), "answer " * (n % 3 + 1)) for n in range(20)])
    options = [f"model={model}", "data=chat", f"data.path={talks}", "data.samples=null", "data.seq_len=64", *more]
    counted = {}
    for packing in ("false", "true"):
        counted[packing] = real([*options, f"data.packing={packing}"], tmp_path)
        assert not differing(counted[packing], fake([*options, f"data.packing={packing}"], tmp_path))
    assert counted["true"]["peak_tensor_bytes"] > counted["false"]["peak_tensor_bytes"]


@pytest.mark.parametrize(
    "optim",
    [
        *("rmsprop", "adagrad", "muon", "lion", "ademamix", "ademamix8bit", "schedule_free", "stable_adamw"),
        *("adamw8bit_ao", "adamw4bit", "adamw_fp8"),
    ],
)
def test_states_of_an_optimizer_count_the_same(optim, tmp_path):
    options = ["model=llama_tiny", "model.width=64", f"optim={optim}"]
    if cannot_run_here(facts_of(("optim", optim))):
        pytest.skip(f"the package of optim={optim} is not installed")
    if optim == "schedule_free":
        options.append("train.schedule=constant")
    counted, foreseen = real(options, tmp_path), fake(options, tmp_path)
    assert not differing(counted, foreseen) and counted["optimizer_bytes"] == foreseen["optimizer_bytes"]


@pytest.mark.parametrize("options", [["schedule_free", "train.schedule=constant"], ["stable_adamw"]], ids=" ".join)
def test_an_optimizer_with_tensors_in_its_groups_is_estimated_for_a_gpu(options, tmp_path):
    """Accelerate loads an optimizer's state into it on a GPU, which copies what the groups hold."""
    options = ["model=bert_tiny", f"optim={options[0]}", *options[1:]]
    if cannot_run_here(facts_of(("optim", options[1].removeprefix("optim=")))):
        pytest.skip("the package of this optimizer is not installed")
    on_cpu, on_gpu = (fake([*options, *device], tmp_path) for device in ([], ["gpu=a100_80gb", "device=auto"]))
    assert on_gpu["optimizer_bytes"] == pytest.approx(on_cpu["optimizer_bytes"], rel=1e-3)


def test_a_model_of_other_sizes_does_not_count_the_same(tmp_path):
    """So that the comparison above can fail."""
    assert differing(real([], tmp_path), fake(["model.feed_forward=128"], tmp_path))
