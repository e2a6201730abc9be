"""The private names of torch.distributed behave as legroom.compat.torch_distributed_private says."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel, distributed

from legroom.compat import torch_distributed_private


@pytest.fixture
def process_group():
    """One rank on the fake process group."""
    dist.init_process_group("fake", store=torch_distributed_private.fake_process_group_store(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_shards_like_those_of_another_tensor(process_group):
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    whole = torch.randn(3, 2)
    sharded = distribute_tensor(torch.zeros(3, 2), mesh, [Shard(0)])
    made = torch_distributed_private.shard_like(sharded, whole)
    assert made.placements == sharded.placements and made.shape == sharded.shape and made.to_local().equal(whole)


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


# --- pipelining --------------------------------------------------------------------------------------


def _stages(count, ranks):
    """Linear layers as the stages of rank 0 of `ranks`, of a pipeline with as many stages as `count` times these."""
    hidden = torch.empty(1, 3, device="meta", requires_grad=True)
    last = torch.empty((), device="meta", requires_grad=True)
    torch.manual_seed(0)
    made = []
    for index in range(0, count * ranks, ranks):
        is_last = index == count * ranks - 1
        module = torch.nn.Sequential(torch.nn.Linear(3, 3), *[_Mean()] * is_last)
        given = hidden if index else torch.empty(1, 3, device="meta")
        described = (module, index, count * ranks, torch.device("cpu"), given, last if is_last else hidden)
        made.append(torch_distributed_private.pipeline_stage(*described, dist.group.WORLD))
    return made


class _Mean(torch.nn.Module):
    def forward(self, hidden):
        return hidden.square().mean()


@pytest.mark.parametrize("name,count", [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_pipeline_schedule(process_group, name, count):
    """Gradients are sums over micro-batches, each weighted by `loss`, which is asked once for each, in order."""
    stages, rows, weights, losses = _stages(count, 1), torch.randn(4, 3), [1.0, 0.5, 2.0, 0.25], []
    order = iter(weights)
    schedule = torch_distributed_private.pipeline_schedule(name, stages, 4, lambda loss, _: loss * next(order))
    schedule.step(rows, target=rows, losses=losses, return_outputs=False)
    whole = torch.nn.Sequential(*(stage.submod for stage in stages))
    gradients = [weight.grad.clone() for weight in whole.parameters()]
    whole.zero_grad()
    expected = [share * whole(row[None]) for share, row in zip(weights, rows)]
    sum(expected).backward()
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(gradients, [weight.grad for weight in whole.parameters()])


@pytest.fixture
def two_ranks():
    """Rank 0 of two on the fake process group."""
    dist.init_process_group("fake", store=torch_distributed_private.fake_process_group_store(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def test_a_pipeline_stage_asks_no_other_whether_shapes_are_known(two_ranks, monkeypatch):
    """torch's own stages send and receive a vote before the first pass of each schedule."""

    def voted(*_, **__):
        raise AssertionError("a vote")

    for name in ("send", "recv"):
        monkeypatch.setattr(dist, name, voted)
    rows = torch.randn(2, 3)
    torch_distributed_private.pipeline_schedule("1f1b", _stages(1, 2), 2, None).step(rows, return_outputs=False)
    described = (torch.nn.Linear(3, 3), 0, 2, torch.device("cpu"))
    shapes = [torch.empty(1, 3, device="meta", requires_grad=grads) for grads in (False, True)]
    asking = PipelineStage(*described, input_args=shapes[0], output_args=shapes[1], group=dist.group.WORLD)
    with pytest.raises(AssertionError, match="a vote"):
        torch_distributed_private.pipeline_schedule("1f1b", [asking], 2, None).step(rows, return_outputs=False)


def test_messages_keep_tensors(two_ranks):
    """What torch's schedules wait for keeps the tensor until then; the fake process group's own does not."""

    def is_kept():
        tensor = torch.ones(1)
        seen = weakref.ref(tensor)
        under_way = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, 1), dist.P2POp(dist.irecv, tensor, 1)])
        del tensor
        kept = seen() is not None
        assert all(work.wait() for work in under_way)
        return kept

    before = dist.isend, dist.irecv, distributed_c10d.isend, distributed_c10d.irecv
    assert not is_kept()
    with torch_distributed_private.messages_keep_tensors():
        assert dist.isend is distributed_c10d.isend is not before[0]
        assert is_kept()
    assert before == (dist.isend, dist.irecv, distributed_c10d.isend, distributed_c10d.irecv)


def test_fsdp_reduces_the_gradients_of_several_backward_passes_once(two_ranks):
    model = torch.nn.Linear(4, 4, bias=False)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    with torch_distributed_private.reduced_once(model, stays_gathered=True):
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
        assert model.weight.grad.tolist() == [[2.0] * 4] * 4  # whole, of both passes
    assert model.weight.grad.to_local().shape == (2, 4)  # of two ranks


def test_tensors_are_gathered_and_scattered(two_ranks):
    whole, part = torch.empty(4), torch.ones(2)
    torch_distributed_private.all_gather(whole, part, group=dist.group.WORLD)
    torch_distributed_private.reduce_scatter(part, torch.ones(4), group=dist.group.WORLD)


def test_fsdp_looks_for_its_modules_when_it_is_asked(two_ranks):
    """A module that has been taken out when the model runs for the first time is one of the model's all the same."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    for module in (*model, model):
        fully_shard(module, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    first, second = model
    torch_distributed_private.find_fsdp_modules(model)
    with torch_distributed_private.reduced_once(model, stays_gathered=False):
        model[1] = torch.nn.Identity()
        second(model(torch.ones(1, 4))).sum().backward()
        model[1] = second
    assert first.weight.grad.to_local().shape == (2, 4)
    assert second.weight.grad.to_local().shape == (2, 4)
