"""The fake device: the results of operations, and where it behaves as CUDA does."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from legroom.compat.torch_private import op_name, storage_key
from legroom.errors import UnknownOperation
from legroom.estimator.fake_gpu import op_cache
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.fake_storages import DEVICE_TYPE
from legroom.estimator.fake_gpu.op_trace import OpTrace


@pytest.fixture
def gpu():
    with FakeDevice((7, 0)) as fake:
        yield fake


class Seen(TorchDispatchMode):
    """The names of all operations, in order."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(op_name(func))
        return func(*args, **kwargs or {})


def ones(gpu, *shape, **settings):
    return torch.ones(shape, device=gpu.device, **settings)


# --- the results of operations ---------------------------------------------------------------------


def test_in_inference_mode_operations_are_the_same(gpu):
    """There torch hands composite operations over whole: a move to the GPU, a product, a loss."""
    network, rows = torch.nn.Linear(4, 3), torch.ones(2, 4)
    network.to(gpu.device)

    def loss():
        moved = rows.to(gpu.device)
        assert moved.device == gpu.device
        return torch.nn.functional.cross_entropy(network(moved), torch.zeros(2, dtype=torch.long).to(gpu.device))

    class Observer(Seen):
        def before(self, func, _):
            self.names.append(op_name(func))

        def after(self, *_):
            pass

    usual, here = Observer(), Observer()
    with torch.no_grad(), gpu.observed_by(usual):
        loss()
    with torch.inference_mode(), gpu.observed_by(here):
        loss()
    assert here.names == usual.names and "addmm" in here.names


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x @ x.T,
        lambda x: x.view(-1)[3:7],
        lambda x: x.T,
        lambda x: x[:, None].expand(6, 3, 4),
        lambda x: x.sum(0),
        lambda x: torch.cat([x, x]),
        lambda x: x.to(torch.float16),
        lambda x: x.split(2),
        lambda x: torch.topk(x, 2),
        lambda x: x.clone().add_(1),
        lambda x: x.select(0, 1).unsqueeze(0),
        lambda x: torch.nn.functional.gelu(x),
        lambda x: x.unfold(0, 2, 1),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: x.repeat(2, 1).contiguous(),
        lambda x: torch.nn.functional.mse_loss(x, x),
        lambda x: torch.nn.functional.mse_loss(x, x, reduction="none"),
        lambda x: torch.nn.functional.mse_loss(x[:0], x[:0], reduction="sum"),
        lambda x: torch.nn.functional.smooth_l1_loss(x, x),
        lambda x: torch.nn.functional.binary_cross_entropy(x, x, reduction="sum"),
        lambda x: torch.nn.functional.soft_margin_loss(x, x),
        lambda x: torch.nn.functional.huber_loss(x, x),
        lambda x: x.clone().transpose_(0, 1),
        lambda x: x.clone().unsqueeze_(1).squeeze_(1).t_(),
        lambda x: x[1:].unsqueeze_(0),
    ],
    ids=range(25),
)
def test_shapes_strides_and_views_are_those_of_the_cpu(gpu, run):
    real, fake = torch.ones(6, 4), ones(gpu, 6, 4)
    for there, here in zip(_tensors(run(real)), _tensors(run(fake)), strict=True):
        assert (there.shape, there.stride(), there.dtype, there.storage_offset()) == (
            here.shape,
            here.stride(),
            here.dtype,
            here.storage_offset(),
        )
        assert here.device == gpu.device and there.untyped_storage().nbytes() == here.untyped_storage().nbytes()
        same = [_storage(there) == _storage(real), _storage(here) == _storage(fake)]
        assert same[0] == same[1]  # a view of it, or a tensor of its own


def _tensors(result):
    return [result] if isinstance(result, torch.Tensor) else [t for t in result if isinstance(t, torch.Tensor)]


def _storage(tensor):
    return storage_key(tensor.untyped_storage())


def test_mse_loss_needs_twice_its_elements():
    model = torch.nn.Linear(4, 4, bias=False, device="meta")
    with FakeDevice((8, 0)) as fake, OpTrace(fake, model, torch.optim.SGD(model.parameters())) as trace:
        x = torch.empty(6, 4, device=fake.device)
        torch.nn.functional.mse_loss(x, x)
        torch.nn.functional.mse_loss(x, x, reduction="none")
    assert [each.bytes for each in trace.workspaces] == [x.nbytes]


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_have_the_shapes_of_the_cpu(gpu, kind):
    layer = getattr(torch.nn, kind)(4, 6, num_layers=2, batch_first=True)
    there = layer(torch.ones(3, 5, 4))[0]
    here = layer.to(gpu.device)(ones(gpu, 3, 5, 4))[0]
    here.sum().backward()
    assert here.shape == there.shape == (3, 5, 6) and here.stride() == there.stride()
    assert [weight.grad.shape for weight in layer.parameters()] == [weight.shape for weight in layer.parameters()]


@pytest.mark.parametrize("activation", [torch.nn.functional.silu, torch.nn.functional.mish])
def test_the_backward_pass_of_an_activation_is_one_operation(gpu, activation):
    """As on CUDA; a device without the kernel computes it by several, with as many temporaries."""
    hidden = ones(gpu, 3, 4, requires_grad=True)
    loss = activation(hidden).sum()
    with Seen() as seen:
        loss.backward()
    computed = [name for name in seen.names if name not in ("ones_like", "expand", "detach")]
    assert computed == [f"{activation.__name__}_backward"] and hidden.grad.shape == (3, 4)


def test_a_ctc_loss_has_a_backward_pass(gpu):
    scores = ones(gpu, 20, 2, 5, requires_grad=True)
    targets = torch.ones(2, 4, dtype=torch.long).to(gpu.device)
    torch.nn.functional.ctc_loss(scores, targets, (20, 20), (4, 4)).backward()
    assert scores.grad.shape == scores.shape


def test_factors_of_a_matrix_on_the_host_lie_as_the_cpus():
    with FakeDevice(None) as fake:
        with fake.building():
            hollow = torch.empty(6, 4)
        for here, there in zip(torch.linalg.svd(hollow, False), torch.linalg.svd(torch.ones(6, 4), False), strict=True):
            assert (here.shape, here.stride()) == (there.shape, there.stride())


def test_gradients_and_their_shapes(gpu):
    x, weight = ones(gpu, 4, 8), ones(gpu, 8, 3, requires_grad=True)
    checkpoint(lambda x: (x @ weight).relu(), x, use_reentrant=False).sum().backward()
    assert weight.grad.shape == weight.shape and weight.grad.device == gpu.device


@pytest.mark.parametrize(
    "run",
    [lambda x: x.sin().sum(), lambda x: checkpoint(lambda x: x.sin(), x, use_reentrant=False).sum()],
    ids=["backward", "recomputed"],
)
@pytest.mark.parametrize("operation", [torch.ops.aten.cos.default, torch.ops.aten.mul.Tensor], ids=["cos", "mul"])
def test_an_unknown_operation_in_a_backward_pass_is_named(run, operation, monkeypatch):
    def fail(*_):
        raise NotImplementedError(f"no meta kernel of {operation}")

    monkeypatch.setitem(op_cache.WITHOUT_META, operation, fail)
    with pytest.raises(UnknownOperation, match=f"cannot infer {operation}"), FakeDevice((7, 0)) as gpu:
        run(ones(gpu, 4, requires_grad=True)).backward()
    with FakeDevice((7, 0)) as gpu:  # the error is not raised again by the next device
        ones(gpu, 4, requires_grad=True).sum().backward()


def test_an_error_of_a_hook_in_a_backward_pass_comes_as_it_is():
    def fail(_):
        raise KeyError("a hook's own")

    with pytest.raises(KeyError, match="a hook's own"), FakeDevice((7, 0)) as gpu:
        x = ones(gpu, 4, requires_grad=True)
        y = x * 2
        y.register_hook(fail)
        y.sum().backward()


def test_a_fake_tensor_takes_no_memory(gpu):
    assert ones(gpu, 2**20, 2**20).untyped_storage().nbytes() == 4 * 2**40


def test_tensors_on_the_host_are_real(gpu):
    assert (torch.ones(3) + 1).tolist() == [2, 2, 2]
    assert ones(gpu, 3).cpu().device.type == "cpu"
    assert torch.tensor([1.0], device=gpu.device).device == gpu.device
    assert (
        ones(gpu, 3) * torch.tensor(2.0)
    ).device == gpu.device  # as on CUDA, a 0-dim tensor on the host may be mixed in


def test_an_operation_without_a_meta_kernel_is_named(gpu):
    with pytest.raises(UnknownOperation, match="nonzero"):
        torch.nonzero(ones(gpu, 3))


def test_shapes_that_depend_on_known_values_are_computed(gpu):
    """As in BART's head, which reads the hidden state of the last token of each row."""
    ids, hidden = torch.tensor([[5, 2, 1], [7, 9, 2]]).to(gpu.device), ones(gpu, 2, 3, 4, requires_grad=True)
    mask = ids.eq(2)
    assert torch.unique_consecutive(mask.sum(1)).numel() == 1
    assert mask.nonzero().shape == (2, 2)
    selected = hidden[mask, :]
    assert selected.shape == (2, 4) and selected.device == gpu.device
    selected.sum().backward()
    assert hidden.grad.shape == hidden.shape


def test_integers_that_are_copied_to_the_host_are_known_or_refused(gpu):
    """`tolist` reads the memory of the copy, which a fake tensor does not have."""
    assert (torch.arange(3, device=gpu.device) * 2).tolist() == [0, 2, 4]
    with pytest.raises(UnknownOperation, match="reads"):
        torch.randint(0, 9, (3,), device=gpu.device).tolist()


def test_a_view_in_another_dtype_has_it(gpu):
    pairs = ones(gpu, 3, 2, requires_grad=True)
    turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.ones(3, dtype=torch.complex64, device=gpu.device))
    assert torch.view_as_complex(pairs).dtype == torch.complex64 and turned.shape == (3, 2)
    turned.sum().backward()
    assert pairs.grad.dtype == torch.float32


# --- numbers ------------------------------------------------------------------------------------------


def test_numbers_that_follow_from_known_ones_can_be_read(gpu):
    positions = torch.arange(5, device=gpu.device)
    assert positions[-1].item() == 4
    mask = torch.tensor([[1, 1, 0]]).to(gpu.device)
    assert not mask.bool().all() and (mask.sum() == 2)
    mask += 1
    assert mask.bool().all()
    assert not gpu.warnings


def test_unknown_numbers_are_1_with_a_warning(gpu):
    assert ones(gpu, 3).sum().item() == 1
    assert (ones(gpu, 3) > 0).all()
    assert type(ones(gpu, 1).item()) is float and type((ones(gpu, 1) > 0).item()) is bool
    assert any("test_fake_device.py" in line and "taken as 1" in line for line in gpu.warnings)


def test_parts_of_known_integers_are_known(gpu):
    """As the halves of a mask in TRL's DPO."""
    chosen, rejected = torch.tensor([[0, 1, 1], [1, 0, 0]]).to(gpu.device).chunk(2)
    assert ones(gpu, 1, 3)[chosen.bool()].shape == (2,) and int(rejected.sum()) == 1
    assert not gpu.warnings


def test_random_numbers_are_not_known(gpu):
    torch.randint(0, 2, (3,), device=gpu.device)[0].item()
    assert gpu.warnings


# --- where CUDA differs from a CPU ----------------------------------------------------------------


def test_dropout_keeps_a_mask_of_bytes(gpu):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.dtype) or t, lambda t: t):
        torch.nn.functional.dropout(ones(gpu, 8, requires_grad=True), 0.1)
    assert saved == [torch.bool]


@pytest.mark.parametrize("dtype,casts", [(torch.float16, 0), (torch.bfloat16, 1)])
def test_softmax_from_fp16_to_fp32_makes_no_copy(gpu, dtype, casts):
    with Seen() as seen:
        assert ones(gpu, 4, 8, dtype=dtype).softmax(-1, dtype=torch.float32).dtype == torch.float32
    assert seen.names.count("_to_copy") == casts


def test_optimizers_and_clipping_take_their_foreach_forms(gpu):
    weight = torch.nn.Parameter(ones(gpu, 8))
    weight.grad = ones(gpu, 8)
    optimizer = torch.optim.AdamW([weight])
    with Seen() as seen:
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()
    assert {"_foreach_norm", "_foreach_mul_", "_foreach_sqrt", "_foreach_addcdiv_"} <= set(seen.names)
    assert optimizer.state[weight]["step"].item() == 1  # it lies on the host, as on a GPU's machine
    fused = torch.optim.AdamW([weight], fused=True)
    with Seen() as seen:
        fused.step()
    assert "_fused_adamw_" in seen.names


def test_the_cpu_can_be_faked_and_keeps_its_own_kernels():
    with FakeDevice(None) as fake:
        with fake.building():
            layer = torch.nn.Linear(2**16, 2**16)  # 16 GiB
        x = torch.ones(2, 2**16)
        out = layer(x)
        assert out.device.type == "cpu" and x[0, 0].item() == 1  # what was not made in there is real
        out.sum().backward()
        assert layer.weight.grad.shape == layer.weight.shape
        with Seen() as seen:
            torch.nn.functional.dropout(out, 0.1)
    assert "native_dropout" not in seen.names  # CUDA's


def test_all_patches_are_undone_afterwards():
    with FakeDevice((8, 0)):
        pass
    with torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert torch.ones(2, requires_grad=True).softmax(0).sum().item() == pytest.approx(1)
    assert torch.autograd.is_multithreading_enabled()
    with pytest.raises(RuntimeError):
        torch.ones(2, device=DEVICE_TYPE) + 1
    whole = torch.nn.DataParallel(torch.nn.Linear(2, 2))  # of any device that is available
    assert whole(torch.ones(1, 2)).shape == (1, 2)
