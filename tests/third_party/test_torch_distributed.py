"""What recipes/third_party/torch_distributed_private.py takes from torch is still there."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from recipes.third_party import torch_distributed_private


def test_ddp_buckets_have_a_small_first_one():
    gradients = [torch.empty(2**18, device="meta") for _ in range(8)]  # 1 MiB each
    buckets = torch_distributed_private.ddp_buckets(gradients, 2 * 2**20)
    assert buckets == [[0], [1, 2], [3, 4], [5, 6], [7]]


def test_a_process_group_is_found_by_its_name_and_in_an_operation():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert torch_distributed_private.group_size_by_name(group.group_name) == 1
        assert torch_distributed_private.group_size(group.boxed()) == 1
    finally:
        dist.destroy_process_group()
    assert torch_distributed_private.group_size(1.0) is None
    with pytest.raises(RuntimeError):
        torch_distributed_private.group_size_by_name("no such group")
