"""The private names of torch behave as legroom.compat.torch_private says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import flop_registry

from legroom.compat import torch_distributed_private, torch_private

aten = torch.ops.aten


@pytest.fixture
def process_group():
    """One rank on the fake process group."""
    dist.init_process_group("fake", store=torch_distributed_private.fake_process_group_store(), rank=0, world_size=1)
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


def test_without_dispatch_modes_an_operation_reaches_no_mode():
    class Counting(torch_private.DispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **kwargs or {})

    with Counting() as mode:
        with torch_private.without_dispatch_modes():
            torch.ones(2)
        assert mode.seen == 0
        torch.ones(2)
    assert mode.seen == 1


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


@pytest.mark.parametrize("inference", [False, True])
def test_comes_whole_in_inference_mode_alone(inference):
    seen = []

    class Seen(torch_private.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if torch_private.comes_whole(func):
                with torch_private.dispatching_to(self):
                    return func.decompose(*args, **(kwargs or {}))
            seen.append(torch_private.op_name(func))
            return func(*args, **(kwargs or {}))

    linear, rows = torch.nn.Linear(3, 3), torch.ones(2, 3)
    with torch.inference_mode(inference), Seen():
        assert linear(rows.to(torch.float64).to(torch.float32)).shape == (2, 3)
    assert seen == ["_to_copy", "_to_copy", "t", "addmm"]


def test_local_tensor_of_a_dtensor(process_group):
    mesh = dist.init_device_mesh("cpu", (1,))
    tensor = torch.ones(4)
    assert torch_private.local_tensor(DTensor.from_local(tensor, mesh)).data_ptr() == tensor.data_ptr()
    assert torch_private.local_tensor(tensor) is tensor


def test_muon_of_whole_matrices_asks_for_shards_alone(process_group):
    """And gives the update of a sharded matrix as it gives that of a whole one."""
    from torch.distributed.tensor import Shard, distribute_tensor

    start, gradient, updated = torch.randn(6, 4), torch.randn(6, 4), []
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    for sharded in (False, True):
        weight = torch.nn.Parameter(distribute_tensor(start, mesh, [Shard(0)]) if sharded else start.clone())
        weight.grad = distribute_tensor(gradient, mesh, [Shard(0)]) if sharded else gradient.clone()
        muon = torch.optim.Muon([weight], lr=0.1)
        with torch_private.muon_of_whole_matrices():
            muon.step()
        updated.append(torch_private.local_tensor(weight.detach()))
    assert updated[0].equal(updated[1]) and not updated[0].equal(start)


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


def test_mixed_precision_on_another_device():
    with torch_private.mixed_precision_on("cpu"):
        assert torch.autocast("cuda").device == torch.autocast(device_type="cuda", dtype=torch.bfloat16).device == "cpu"
        scaler = torch.amp.GradScaler("cuda")
        assert scaler.is_enabled() and scaler.state_dict()
    assert torch.autocast("cpu").device == "cpu" and torch.amp.GradScaler("cpu").is_enabled()


def test_without_compile():
    module = torch.nn.Linear(2, 2)
    assert torch_private.without_compile(torch.compile(module)) is module
    assert torch_private.without_compile(module) is module


def test_compiled_graphs():
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    before = torch_private.compiled_graphs()
    assert (compiled(torch.ones(3)) == 2).all()
    assert torch_private.compiled_graphs() == before + 1


def test_disabled_scalers_of_cuda_are_heard_of():
    used, off = [], torch.amp.GradScaler("cuda", enabled=False)
    with torch_private.observed_disabled_scalers(used.append):
        torch.amp.GradScaler("cpu", enabled=False).scale(torch.ones(1))
        torch.amp.GradScaler("cpu").scale(torch.ones(1))
        assert not used
        assert off.scale(torch.ones(1)) == 1
    assert used == [off] and off.scale(torch.ones(1)) == 1 and len(used) == 1


def test_uncompiled_hears_of_compiled_functions_and_modules_alone():
    def compiler(graph, inputs):
        raise AssertionError("nothing is compiled")

    def double(x):
        return 2 * x

    calls = []
    module = torch.nn.Linear(2, 2)
    module.compile(backend=compiler)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with torch_private.uncompiled(lambda: calls.append(1)):
            torch.compile(double, backend=compiler)(torch.ones(2))
            module(torch.ones(2))
            assert len(calls) == 2
            torch.compiler.disable(double)(torch.ones(2))
            assert len(calls) == 2
        warned = pytest.warns(UserWarning, match=r"^Using `torch.compile\(module\)` when there are global hooks")
        with warned, torch.compiler.set_stance("force_eager"):
            torch.compile(torch.nn.Linear(2, 2), backend=compiler)(torch.ones(2))
    finally:
        hook.remove()
    assert len(calls) == 2


def test_without_graph_is_the_same_memory_and_unseen():
    result, seen = torch.ones(2, requires_grad=True).exp(), []

    class Seen(torch_private.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Seen():
        alias = torch_private.without_graph(result)
    assert alias.grad_fn is None and alias.data_ptr() == result.data_ptr() and not seen
    leaf = torch.ones(2, requires_grad=True)
    assert torch_private.without_graph(leaf) is leaf


def test_a_tensor_takes_the_data_of_another_type_and_stays_what_it_is():
    class Marked(torch.nn.Parameter):
        pass

    weight = Marked(torch.zeros(3))
    weight.mark = 1
    moved = torch.zeros(3, device="meta")
    assert not torch_private.have_one_type(weight, moved)
    with torch.no_grad():
        torch_private.swap_data(weight, moved)
    assert type(weight) is Marked and weight.mark == 1 and weight.is_meta and weight.requires_grad and weight.is_leaf


def test_moving_a_module_keeps_its_parameters_where_data_may_be_set():
    layer = torch.nn.Linear(2, 2)
    before = [*layer.parameters()]
    with torch_private.modules_that_keep_their_parameters():
        layer.double()
    assert all(a is b for a, b in zip(before, layer.parameters())) and layer.weight.dtype == torch.float64


def test_norms_are_in_fp32_and_products_in_place():
    tensors = [torch.full((4,), 3.0, dtype=torch.bfloat16), torch.ones(1)]
    assert [norm.item() for norm in torch_private.norms(tensors)] == [6.0, 1.0]
    assert torch_private.norms(tensors)[0].dtype == torch.float32
    torch_private.multiply(tensors, torch.tensor(0.5))
    assert tensors[0].tolist() == [1.5] * 4


def test_a_module_computes_with_other_tensors_for_a_while():
    layer = torch.nn.Linear(2, 1)
    weight, bias = layer.weight, layer.bias
    with torch_private.replaced_parameters(layer, {"weight": torch.ones(1, 2), "bias": None}):
        assert layer(torch.ones(2)).item() == 2.0
    assert layer.weight is weight and layer.bias is bias
