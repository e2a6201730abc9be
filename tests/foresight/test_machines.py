"""Estimates for several machines: what is refused, which groups cross the network, and what record and summary say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from conftest import compose, small
from test_ledger_ranks import foreseen
from torch.distributed.device_mesh import init_device_mesh

from legroom.cli import brief
from legroom.compat import torch_distributed_private
from legroom.estimator.fake_gpu.op_cache import call_signature
from legroom.estimator.speed import efficiencies
from legroom.estimator.speed.roofline import predict
from legroom.machine.worker_environment import SIMULATIONS

A100, NETWORK = ["gpu=a100_80gb", "data.samples=64", "model=llama_tiny"], "gpu.machine_link_gb_per_second=25"
TWO = ["gpu.machines=2", NETWORK]
HYBRID = ["parallelism=fsdp", "parallelism.strategy=hybrid_shard"]


def ranks(count: int) -> str:
    return f"parallelism.num_processes={count}"


@pytest.mark.parametrize(
    "words,said",
    [
        (["gpu.machines=2", "parallelism=ddp", ranks(16)], ["gpu.machine_link_gb_per_second=", "each direction"]),
        ([NETWORK], ["gpu.machines is 1", "gpu.machines=2"]),
        ([*TWO, "parallelism=ddp", ranks(15)], ["15", "divided equally", ranks(16)]),
        ([*TWO, "parallelism=ddp"], ["how many GPUs", ranks(2)]),  # where none is installed
        (TWO, ["one process", "parallelism=ddp", ranks(16)]),
        ([*TWO, *HYBRID, ranks(12), "parallelism.shard_size=4"], ["unevenly", "parallelism.shard_size=6"]),
        (
            [*TWO, "parallelism=fsdp_tp", ranks(12), "parallelism.tensor_size=4", "model.heads=4", "model.kv_heads=4"],
            ["unevenly", "tensor_size=6"],
        ),
    ],
)
def test_machines_without_ranks_or_a_network_are_refused(words, said):
    (problem,) = compose("recipe=estimate", *A100, *words).problems
    assert all(word in problem for word in said), problem


@pytest.mark.parametrize("words", [[], ["recipe=estimate"]])
def test_machines_are_for_an_estimate_of_gpus(words):
    problems = compose("device=cpu", *words, *TWO).problems
    assert any("gpu.machines=2 is for an estimate" in problem and "launcher" in problem for problem in problems)


@pytest.mark.parametrize(
    "words",
    [
        ["parallelism=ddp", ranks(16)],
        [*HYBRID, ranks(16)],  # groups of a machine
        [*HYBRID, ranks(16), "parallelism.shard_size=4"],
        [*HYBRID, ranks(32), "parallelism.shard_size=8"],
        ["parallelism=fsdp_tp", ranks(8), "parallelism.tensor_size=2"],
    ],
)
def test_groups_that_lie_evenly_are_not_refused(words):
    assert compose("recipe=estimate", *A100, *TWO, *words).problems == []


def groups(simulated) -> set[tuple[int, ...]]:
    found = {key for counts in simulated.tally.counts.values() for key in counts if key.kind == "collective"}
    return {operation.shape for operation in found if operation.bytes > 1000}


def test_hybrid_strategies_shard_within_a_machine(tmp_path):
    words = [*small(*A100), "device=auto", *HYBRID, ranks(8)]
    machines, typed = (foreseen(tmp_path, *words, *more) for more in (TWO, ["parallelism.shard_size=4"]))
    assert machines.parts == typed.parts and groups(machines) == groups(typed) == {(4, 1), (2, 4)}


def test_tensor_parallelism_stays_in_a_machine(tmp_path):
    words = [*small(*A100), "device=auto", *TWO, "parallelism=fsdp_tp", ranks(8)]
    assert groups(foreseen(tmp_path, *words)) == {(2, 1), (4, 2)}


def test_the_network_takes_the_seconds_of_a_tree(tmp_path):
    """DDP on 4 ranks, two on a machine: the gradients each way, at 92 % of three quarters of 25 GB/s."""
    words = ["gpu=a100_80gb", "model.width=512", "model.heads=8", "data.samples=64", "parallelism=ddp", ranks(4), *TWO]
    cfg, seen = compose("recipe=estimate", *words).cfg, foreseen(tmp_path, *words)
    instant = {"simple": dict.fromkeys(("start", "nvlink", "network"), 0.0) | {"bandwidth": 1.0}}
    reached = replace(efficiencies.of_gpu(cfg.gpu), collective_steps=instant)
    found = predict(seen.tally, cfg.gpu, "fp32", 4, reached)
    assert found.link_seconds == pytest.approx(4 * seen.parameter_count / (25e9 * 0.75 * 0.92), rel=0.01)
    assert found.machine_link_seconds == pytest.approx(found.link_seconds)


def test_record_and_summary_say_how_many_machines(predicted, tmp_path):
    slow = [TWO[0], "gpu.machine_link_gb_per_second=0.1"]
    one, two = (predicted(*A100, "parallelism=ddp", ranks(4), *more) for more in ([], slow))
    assert two.memory.device_used_bytes == one.memory.device_used_bytes  # NCCL's part for the network is not known
    assert two.speed.step_seconds_median > one.speed.step_seconds_median
    assert two.speed.bound_by == "machine link" and two.config["gpu"]["machines"] == 2
    assert any("NCCL" in line and "network between machines is not known" in line for line in two.warnings)
    assert any("75% of 0.1 GB/s" in line and "assumed" in line for line in two.warnings)
    assert not any("machines" in line for line in one.warnings)
    assert "2 machines, 0.1 GB/s" in " ".join(brief.answer(two).split())
    assert "machines" not in brief.answer(one)


def test_what_is_shared_between_jobs_knows_the_machines(monkeypatch, tmp_path):
    from legroom.foresight import shared_simulation

    monkeypatch.setenv(SIMULATIONS, str(tmp_path))
    words = ["recipe=estimate", *A100, *HYBRID, ranks(8), NETWORK]
    two, four = (
        shared_simulation.simulate_step(compose(*words, f"gpu.machines={count}").cfg, str(tmp_path))[0]
        for count in (2, 4)
    )
    assert two.parts["parameters_bytes"] < four.parts["parameters_bytes"]  # 4 ranks share a copy, or 2


def test_groups_of_the_same_size_are_told_apart():
    dist.init_process_group("fake", store=torch_distributed_private.fake_process_group_store(), rank=0, world_size=4)
    try:
        mesh, tensor = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")), torch.ones(2)
        seen = [
            call_signature(torch.ops.c10d.allreduce_.default, ([tensor], mesh[name].get_group().boxed()), {})[0]
            for name in ("replicate", "shard", "shard")
        ]
    finally:
        dist.destroy_process_group()
    assert seen[0] != seen[1] == seen[2]
