"""The private names of torch behave as recipes/third_party/torch_private.py says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel, distributed
from torch.utils.flop_counter import flop_registry

from recipes.third_party import torch_private

aten = torch.ops.aten


@pytest.fixture
def process_group():
    """One rank on the fake process group."""
    dist.init_process_group("fake", store=torch_private.fake_process_group_store(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_op_name():
    assert torch_private.op_name(aten.add_.Tensor) == "add_"


def test_overload_name():
    assert torch_private.overload_name(aten.norm.ScalarOpt_dim) == "ScalarOpt_dim"


def test_op_packet_is_the_key_of_the_flop_formulas():
    assert torch_private.op_packet(aten.mm.default) is aten.mm and aten.mm in flop_registry


def test_qualified_packet_name():
    assert torch_private.qualified_packet_name(aten.mm) == "aten::mm"


def test_schema_names_arguments_and_returns():
    schema = torch_private.schema(aten.sum.default)
    assert [argument.name for argument in schema.arguments] == ["self", "dtype"] and len(schema.returns) == 1
    assert not torch_private.schema(aten._foreach_add_.Scalar).returns


def test_storage_key_is_that_of_all_views_of_a_storage():
    tensor = torch.ones(4)
    key = torch_private.storage_key(tensor.untyped_storage())
    assert key == torch_private.storage_key(tensor[1:].untyped_storage())
    assert key != torch_private.storage_key(torch.ones(4).untyped_storage())


def test_current_graph_task_id_is_set_in_a_backward_pass_only():
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: seen.append(torch_private.current_graph_task_id()))
    y.sum().backward()
    assert torch_private.current_graph_task_id() == -1 and seen != [-1] and len(seen) == 1


class Types(torch_private.DispatchMode):
    """Whether each operation runs on FakeTensors."""

    def __init__(self):
        super().__init__()
        self.fake: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.fake.append(torch_private.runs_on_fake_tensors(types))
        return func(*args, **kwargs or {})


def test_runs_on_fake_tensors():
    with Types() as outside:
        torch.ones(2) + 1
        with FakeTensorMode():
            torch.ones(2) + 1
    count = len(outside.fake) // 2
    assert outside.fake == [False] * count + [True] * count and count


def test_dispatch_mode_does_not_skip_dynamo():
    """Without the override torch wraps `__torch_dispatch__` in `torch._dynamo.disable`."""
    assert Types.__torch_dispatch__.__code__.co_filename == __file__
    assert hasattr(torch.utils._python_dispatch.TorchDispatchMode, "_should_skip_dynamo")


def test_local_tensor_of_a_dtensor(process_group):
    mesh = dist.init_device_mesh("cpu", (1,))
    tensor = torch.ones(4)
    assert torch_private.local_tensor(DTensor.from_local(tensor, mesh)).data_ptr() == tensor.data_ptr()
    assert torch_private.local_tensor(tensor) is tensor


@pytest.mark.parametrize("fails", [False, True])
def test_observed_resizes(fails):
    seen, resize = [], torch.UntypedStorage.resize_
    storage = torch.ones(4).untyped_storage()
    try:
        with torch_private.observed_resizes(lambda storage, before: seen.append((before, storage.nbytes()))):
            storage.resize_(0)
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert seen == [(16, 0)] and torch.UntypedStorage.resize_ is resize


def test_unchecked_grad_scaler_steps_with_infinite_gradients():
    scaler = torch_private.UncheckedGradScaler("cpu")
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum() * float("inf")).backward()
    scaler.step(optimizer)
    assert weight.item() != 0


def test_replaced_ddp():
    class Replacement:
        pass

    verify = distributed._verify_param_shape_across_processes
    with torch_private.replaced_ddp(Replacement):
        assert torch.nn.parallel.DistributedDataParallel is Replacement
        assert distributed._verify_param_shape_across_processes(None, []) is True
    assert torch.nn.parallel.DistributedDataParallel is DistributedDataParallel
    assert distributed._verify_param_shape_across_processes is verify


def test_rebuild_ddp_buckets(process_group):
    with torch_private.replaced_ddp(DistributedDataParallel):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model.register_comm_hook(None, _input)
    model(torch.ones(1, 2)).sum().backward()
    torch_private.rebuild_ddp_buckets(model)


def _input(_, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def test_fake_process_group_store(process_group):
    assert dist.get_backend() == "fake"
