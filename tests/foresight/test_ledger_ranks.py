"""Rank 0 of simulated ranks against rank 0 of real ones, on a CPU: the ledger counts the same, whatever is sharded.

Each real job is forked from one fork server; the fake ones run here. See also test_ledger_pairs, for one process.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from conftest import compose, small
from test_ledger_pairs import differing

from legroom.estimator.speed import efficiencies
from legroom.estimator.speed.roofline import predict
from legroom.foresight import prediction, simulation
from legroom.jobs import supervise
from legroom.units import MIB

SHORT = ["tracker=none", "eval.enabled=false", "model.layers=2", "data.samples=24", "train.max_steps=2"]
# Wide enough that what is gathered and sent decides on the peak.
WIDE = "model=llama_tiny model.width=64 model.feed_forward=256 model.vocab=4096 model.heads=4 model.kv_heads=4"
TWO, FOUR = "parallelism.num_processes=2", "parallelism.num_processes=4"
# gloo's threads hold on to what they have sent for a moment after the sender was told that it is done. What is measured
# is a rank without that chance. Functional collectives wait in C++, and not by Work.wait.
PATIENCE = """
import time
from torch.distributed import Work, _functional_collectives
def patient(wait):
    def wait_longer(*args):
        done = wait(*args)
        time.sleep(0.003)
        return done
    return wait_longer
Work.wait = patient(Work.wait)
_functional_collectives.wait_tensor = patient(_functional_collectives.wait_tensor)
"""
# What tokens go to which expert is the router's choice, which the fake ranks do not know: both take turns.
IN_TURN = """
import torch.distributed
from legroom.estimator.fake_gpu import library_patches
from legroom.compat import transformers_models_private as private
routes = private.kept_by_the_test = private.replaced_routes(
    library_patches._even_routes, torch.distributed.all_to_all_single
)
routes.__enter__()
"""


@pytest.fixture
def rows(tmp_path):
    """Texts of many lengths, so that ranks and micro-batches differ."""
    texts = [{"text": "a" * (3 + 7 * n % 40), "label": n % 2} for n in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    return ["data=text", f"data.path={tmp_path}/rows.jsonl", "data.seq_len=48", "data.samples=19"]


@pytest.fixture
def real(make_job, fault):
    """real(*words) -> the parts that each rank counted in its ledger's step."""

    def real(*words: str) -> list[dict]:
        fork_server = fault(PATIENCE + IN_TURN * any("experts" in word for word in words))
        outcome = supervise.run(make_job(*small("recipe=accelerate", *words)), lambda *_: None, fork_server)
        assert outcome.status == "ok", outcome.error
        return outcome.memory.per_rank

    return real


def foreseen(folder, *words: str) -> simulation.SimulatedStep:
    cfg, _, problems = compose("recipe=estimate", *words)
    assert not problems, problems
    return simulation.simulate_step(cfg, str(folder), prediction.allocator_bytes(cfg))


RANKS = [
    f"parallelism=ddp {TWO} {WIDE} parallelism.bucket_cap_mb=1 accumulation.steps=3",
    f"parallelism=ddp {TWO} model=gpt2_tiny checkpointing=full precision=bf16_pure optim=adafactor data=rows "
    "accumulation.steps=3",
    f"parallelism=fsdp {TWO} {WIDE}",
    f"parallelism=fsdp {FOUR} model=mixtral_tiny parallelism.strategy=no_shard checkpointing=full optim=sgd",
    f"parallelism=fsdp {TWO} {WIDE} adapter=lora precision=bf16",
    f"parallelism=fsdp {TWO} {WIDE} adapter=qlora precision=bf16",
    f"parallelism=fsdp {TWO} model=mixtral_tiny parallelism.experts=2 model.feed_forward=128 checkpointing=full",
    f"parallelism=ddp {TWO} {WIDE} parallelism.context=2 precision=bf16",
    f"parallelism=fsdp {TWO} {WIDE} optim=muon precision=bf16",
    f"parallelism=fsdp {TWO} {WIDE} optim=adamw8bit_ao precision=bf16",
]
PIPELINE = f"parallelism=pipeline {TWO} model.layers=4 accumulation.steps=4"
MORE_RANKS = [
    f"{PIPELINE} {WIDE} parallelism.schedule=gpipe precision=bf16 optim=sgd",
    f"{PIPELINE} model=gpt2_tiny parallelism.schedule=interleaved checkpointing=full",
    f"{PIPELINE} {FOUR} {WIDE} model.vocab=64 accumulation.steps=3 loss=chunked",
    f"parallelism=ddp {FOUR} model=bert_tiny model.dropout=0.1 precision=bf16 "
    "parallelism.gradient_as_bucket_view=false",
    f"parallelism=fsdp parallelism.num_processes=1 {WIDE} precision=bf16 accumulation.steps=2",
    f"parallelism=fsdp {FOUR} {WIDE} precision=bf16 checkpointing=full accumulation.steps=3 optim=adamw_fused",
    f"parallelism=fsdp {TWO} model=bert_tiny precision=bf16_pure data=rows accumulation.steps=3 optim=sgd",
    f"parallelism=fsdp {TWO} {WIDE} parallelism.strategy=shard_grad_op precision=bf16",
    f"parallelism=fsdp {FOUR} {WIDE} precision=bf16_pure parallelism.strategy=hybrid_shard parallelism.shard_size=2",
    f"parallelism=fsdp {FOUR} model=gpt2_tiny data=rows "
    "parallelism.strategy=hybrid_shard_zero2 parallelism.shard_size=2",
    f"parallelism=fsdp {TWO} {WIDE} parallelism.wrap=size parallelism.wrap_min_parameters=5000 optim=sgd",
    f"parallelism=fsdp {TWO} {WIDE} parallelism.wrap=none precision=bf16",
    f"parallelism=fsdp_tp {FOUR} {WIDE}",
    f"parallelism=fsdp_tp {FOUR} {WIDE} optim=muon",
    f"parallelism=fsdp {TWO} {WIDE} optim=adamw4bit precision=bf16_pure",
    f"parallelism=fsdp_tp {FOUR} {WIDE} parallelism.strategy=shard_grad_op precision=bf16 checkpointing=full",
    f"parallelism=fsdp {FOUR} model=mixtral_tiny parallelism.experts=2 parallelism.strategy=shard_grad_op "
    "precision=bf16 accumulation.steps=2",
    f"parallelism=fsdp {FOUR} {WIDE} adapter=qlora parallelism.strategy=shard_grad_op accumulation.steps=2",
    f"parallelism=fsdp {TWO} {WIDE} adapter=lora precision=bf16_pure accumulation.steps=2 batch.per_device=2",
    f"parallelism=fsdp {FOUR} {WIDE} parallelism.context=4 precision=bf16 checkpointing=full accumulation.steps=2",
]


@pytest.mark.slow_for("words1", "words2", "words3", "words4", "words5", "words6", "words8")
@pytest.mark.parametrize("words", [*RANKS, *(pytest.param(words, marks=pytest.mark.slow) for words in MORE_RANKS)])
def test_a_rank_that_is_not_there_counts_the_same(real, rows, tmp_path, words):
    chosen = SHORT + [word for given in words.split() for word in (rows if given == "data=rows" else [given])]
    simulated = foreseen(tmp_path, *small(*chosen))
    counted, predicted = real(*chosen)[simulated.rank], simulated.parts
    assert not differing(counted, predicted)
    assert predicted["peak_tensor_bytes"] == pytest.approx(counted["peak_tensor_bytes"], rel=0.005)


@pytest.mark.slow
def test_two_ranks_do_not_count_as_four(tmp_path):
    """So that the comparison above can fail."""
    two, four = (foreseen(tmp_path, *small(*SHORT, "parallelism=fsdp", count)).parts for count in (TWO, FOUR))
    assert differing(two, four)


# --- on a GPU, which has an allocator and a link ---------------------------------------------------------

GPU = ["gpu=a100_40gb", "model=gpt2_tiny", "data.seq_len=128", "data.samples=64", "batch.per_device=2"]


def test_buckets_stand_in_the_allocator_once_beside_those_of_the_first_step(tmp_path):
    """However often the step is repeated there: DDP's gradients lie in buckets, and take no more than one process's.
    NCCL's process group may still hold the buckets of the first step, in place of which DDP makes others."""
    words = [
        "gpu=a100_40gb",
        "model=bert_base",
        "model.layers=4",
        "data.seq_len=64",
        "data.samples=16",
        "batch.per_device=1",
    ]
    one, four = (foreseen(tmp_path, *words, *mode) for mode in ([], ["parallelism=ddp", FOUR]))
    assert four.parts["peak_tensor_bytes"] == pytest.approx(one.parts["peak_tensor_bytes"], rel=0.001)
    first_step = 4 * four.parameter_count
    assert four.demand.peak_allocated_bytes == pytest.approx(one.demand.peak_allocated_bytes + first_step, rel=0.01)


def test_ddp_sends_a_flat_copy_of_the_weights_to_all_ranks_before_the_first_step(tmp_path):
    """Up to 250 MiB at a time, which beside an adapter is more than what a step adds to the weights."""
    words = ["gpu=a100_40gb", "model=bert_base", "model.layers=4", "data.seq_len=16", "data.samples=16"]
    ddp = foreseen(tmp_path, *words, "adapter=lora", "batch.per_device=1", "parallelism=ddp", FOUR)
    weights = ddp.parts["weights_bytes"]
    assert weights < 250 * MIB and ddp.parts["peak_tensor_bytes"] < 1.5 * weights
    assert ddp.demand.peak_allocated_bytes == pytest.approx(2 * weights, rel=0.01)


@pytest.mark.slow_for("words1")
@pytest.mark.parametrize("words", [["model=gpt2_tiny", "precision=bf16"], ["model=bert_tiny", "accumulation.steps=3"]])
def test_what_is_offloaded_is_not_on_the_device(tmp_path, words):
    here, away = (
        foreseen(tmp_path, *GPU, *words, "parallelism=fsdp", FOUR, f"parallelism.cpu_offload={offload}")
        for offload in ("false", "true")
    )
    kept = {"parameters", "optimizer"}
    assert all(here.parts["largest_bytes"][kind] > 0 for kind in kept)
    assert all(away.parts["largest_bytes"][kind] == 0 for kind in kept | {"gradients"})
    assert away.parts["largest_bytes"]["weight_copies"] == here.parts["largest_bytes"]["weight_copies"]
    assert away.demand.peak_allocated_bytes < here.demand.peak_allocated_bytes


STEPS = 4


@pytest.mark.parametrize(
    "mode,told",
    [
        ("ddp", {"allreduce_": 1}),
        ("fsdp", {"_allgather_base_": 2 * STEPS, "_reduce_scatter_base_": STEPS}),
        ("fsdp parallelism.sync_each_batch=false", {"_allgather_base_": 2 * STEPS, "_reduce_scatter_base_": 1}),
        ("fsdp parallelism.strategy=shard_grad_op", {"_allgather_base_": STEPS, "_reduce_scatter_base_": STEPS}),
        (
            "fsdp parallelism.strategy=hybrid_shard parallelism.shard_size=2",
            {"_allgather_base_": 2 * STEPS, "_reduce_scatter_base_": STEPS, "allreduce_": STEPS / 2},
        ),
    ],
)
def test_what_ranks_send_each_other_is_what_the_algorithm_says(tmp_path, mode, told):
    """In models: DDP reduces all gradients once a step. FSDP gathers all weights for each micro-batch, twice where they
    are given back in between, and reduces as often, or once a step without `sync_each_batch`; the hybrid reduces a
    group's part between the groups, too."""
    seen = foreseen(tmp_path, *GPU, f"accumulation.steps={STEPS}", *f"parallelism={mode}".split(), FOUR)
    sent, groups = Counter(), {}
    for counts in seen.tally.counts.values():
        for operation, times in counts.items():
            if operation.kind == "collective":
                sent[operation.name] += operation.bytes * times
                if operation.bytes > 1000:  # no mean of losses
                    groups.setdefault(operation.name, set()).add(operation.shape)
    weights = 4 * seen.parameter_count
    assert sent == pytest.approx(
        {name: share * weights for name, share in told.items()} | dict.fromkeys(sent.keys() - told.keys(), 0),
        rel=0.01,
        abs=1000,
    )
    between = {"allreduce_": {(2, 2)}} if "hybrid" in mode else {}  # every other rank
    assert groups == dict.fromkeys(told, {(2, 1)} if "hybrid" in mode else {(4, 1)}) | between


def test_the_link_takes_the_seconds_of_a_ring(tmp_path):
    """DDP on 4 ranks: (n - 1) / n of the gradients, twice."""
    words = [*GPU, "model.width=512", "model.heads=8", "parallelism=ddp", FOUR]
    cfg, seen = compose("recipe=estimate", *words).cfg, foreseen(tmp_path, *words)
    reached = efficiencies.of_gpu(cfg.gpu)
    seconds = 2 * 3 / 4 * 4 * seen.parameter_count / (cfg.gpu.link_gb_per_second * 1e9 * reached.link)
    instant = {"simple": dict.fromkeys(("start", cfg.gpu.link), 0.0) | {"bandwidth": 1.0, "network": 0.0}}
    told = predict(seen.tally, cfg.gpu, "fp32", 4, replace(reached, collective_steps=instant))
    assert told.link_seconds == pytest.approx(seconds, rel=0.01)


def test_an_optimizer_moves_a_ranks_part_only(tmp_path):
    def moved(*mode) -> int:
        counts = foreseen(tmp_path, *GPU, *mode).tally.counts["step"]
        return sum(operation.bytes * times for operation, times in counts.items() if operation.kind == "optimizer")

    assert moved("parallelism=fsdp", FOUR) == pytest.approx(moved() / 4, rel=0.02)


def test_tokens_of_uneven_batches_are_those_of_all_ranks(tmp_path, rows):
    words = [*GPU, *rows, "batch.per_device=1", "model.vocab=512"]
    alone, four = (foreseen(tmp_path, *words, *mode) for mode in ([], ["parallelism=ddp", FOUR]))
    assert (four.tokens, four.warnings) == (4 * alone.tokens, alone.warnings)


@pytest.mark.slow_for("2")
@pytest.mark.parametrize("shard_size", [2, 4])
def test_eight_ranks_in_groups_shard_within_a_group(tmp_path, shard_size):
    grouped = ["parallelism.strategy=hybrid_shard", f"parallelism.shard_size={shard_size}"]
    eight = ["parallelism=fsdp", "parallelism.num_processes=8", "model=llama_tiny", "model.vocab=1024"]
    one = foreseen(tmp_path, *small(*eight, "parallelism.strategy=no_shard")).parts["parameters_bytes"]
    part = foreseen(tmp_path, *small(*eight, *grouped)).parts["parameters_bytes"]
    assert part == pytest.approx(one / shard_size, rel=0.01)
