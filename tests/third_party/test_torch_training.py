"""The private names of torch behave as recipes/third_party/torch_training_private.py says."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from recipes.third_party import torch_training_private


def test_shard_offset():
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        tensor = distribute_tensor(torch.zeros(6, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
        assert torch_training_private.shard_offset(tensor) == [3, 0]
    finally:
        dist.destroy_process_group()


def test_without_compile():
    module = torch.nn.Linear(1, 1)
    assert torch_training_private.without_compile(torch.compile(module)) is module
    assert torch_training_private.without_compile(module) is module


def test_compiled_graphs():
    before = torch_training_private.compiled_graphs()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    assert torch_training_private.compiled_graphs() == before + 1
