"""The private names of torch.distributed behave as legroom.third_party.torch_distributed_private says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel, distributed

from legroom.third_party import torch_distributed_private


@pytest.fixture
def process_group():
    """One rank on the fake process group."""
    dist.init_process_group("fake", store=torch_distributed_private.fake_process_group_store(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ddp_buckets_have_a_small_first_one():
    gradients = [torch.empty(2**18, device="meta") for _ in range(8)]  # 1 MiB each
    buckets = torch_distributed_private.ddp_buckets(gradients, 2 * 2**20)
    assert buckets == [[0], [1, 2], [3, 4], [5, 6], [7]]


def test_a_process_group_is_found_by_its_name_and_in_an_operation():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert torch_distributed_private.group_by_name(group.group_name) is group
        assert dist.get_process_group_ranks(torch_distributed_private.group_of(group.boxed())) == [0]
    finally:
        dist.destroy_process_group()
    assert torch_distributed_private.group_of(1.0) is None
    with pytest.raises(RuntimeError):
        torch_distributed_private.group_by_name("no such group")


def test_replaced_ddp():
    class Replacement:
        pass

    verify = distributed._verify_param_shape_across_processes
    with torch_distributed_private.replaced_ddp(Replacement):
        assert torch.nn.parallel.DistributedDataParallel is Replacement
        assert distributed._verify_param_shape_across_processes(None, []) is True
    assert torch.nn.parallel.DistributedDataParallel is DistributedDataParallel
    assert distributed._verify_param_shape_across_processes is verify


def test_rebuild_ddp_buckets(process_group):
    with torch_distributed_private.replaced_ddp(DistributedDataParallel):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model.register_comm_hook(None, _input)
    model(torch.ones(1, 2)).sum().backward()
    torch_distributed_private.rebuild_ddp_buckets(model)


def _input(_, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def test_fake_process_group_store(process_group):
    assert dist.get_backend() == "fake"


def test_shard_offset(process_group):
    """Rank 1 of 2, each with a half of the rows."""
    dist.destroy_process_group()
    dist.init_process_group("fake", store=torch_distributed_private.fake_process_group_store(), rank=1, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    assert torch_distributed_private.shard_offset(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])) == [2, 0]


def test_ddp_waiting_seconds(process_group):
    """DDP logs the times of sampled steps only.

    Not with gloo: its group, freed right behind an all-reduce, waits for a thread that waits for the GIL.
    """
    with torch_distributed_private.replaced_ddp(DistributedDataParallel):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model.register_comm_hook(None, _input)
    assert torch_distributed_private.ddp_waiting_seconds(model) is None
    model._set_ddp_runtime_logging_sample_rate(1)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    seconds = torch_distributed_private.ddp_waiting_seconds(model)
    assert seconds is not None and 0 <= seconds < 60
