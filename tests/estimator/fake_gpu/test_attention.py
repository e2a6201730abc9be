"""Which attention kernel a GPU chooses, by torch's rules, and what it keeps for the backward pass."""

from __future__ import annotations

import pytest
import torch

from legroom.estimator.fake_gpu import attention
from legroom.estimator.fake_gpu.device import FakeDevice

HALF, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
V100, T4, A100, RTX4090, H100, B200, RTX5090 = (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)


@pytest.fixture
def on():
    """on(capability) -> a fake GPU of that capability, for the rest of the test."""
    opened = []

    def on(capability):
        opened.append(FakeDevice(capability))
        return opened[-1].__enter__()

    yield on
    for fake in opened:
        fake.__exit__(None, None, None)


def heads(fake, dtype, size=64, length=128, batch=2, count=4, grad=True):
    return torch.empty(batch, count, length, size, dtype=dtype, device=fake.device, requires_grad=grad)


@pytest.mark.parametrize(
    "capability,dtype,size,masked,dropout,expected",
    [
        (V100, FP32, 64, False, 0.0, "efficient"),
        (V100, HALF, 64, False, 0.1, "efficient"),  # flash needs Ampere
        (V100, BF16, 64, False, 0.0, "math"),  # which has no bf16 at all before Ampere
        (T4, HALF, 36, False, 0.0, "math"),  # half on tensor cores wants multiples of 8
        (A100, FP32, 64, False, 0.0, "efficient"),
        (A100, BF16, 64, False, 0.1, "flash"),
        (A100, BF16, 64, True, 0.0, "efficient"),  # flash takes no mask
        (A100, BF16, 256, False, 0.1, "flash"),
        (A100, BF16, 320, False, 0.0, "efficient"),
        (A100, FP32, 30, False, 0.0, "math"),
        (V100, FP32, 30, False, 0.0, "efficient"),
        (RTX4090, BF16, 200, False, 0.0, "efficient"),  # training: between 192 and 224 not on these
        (RTX4090, BF16, 256, False, 0.0, "flash"),
        (RTX4090, BF16, 256, False, 0.1, "efficient"),
        (H100, BF16, 64, False, 0.0, "cudnn"),
        (H100, BF16, 64, True, 0.0, "cudnn"),
        (H100, BF16, 64, False, 0.1, "flash"),  # cuDNN's dropout goes in sixteenths
        (H100, BF16, 64, False, 0.125, "cudnn"),
        (H100, FP32, 64, False, 0.0, "efficient"),
        (B200, HALF, 128, False, 0.0, "cudnn"),
        (RTX5090, BF16, 64, False, 0.0, "flash"),
    ],
)
def test_the_kernel(on, capability, dtype, size, masked, dropout, expected):
    fake = on(capability)
    query, key, value = (heads(fake, dtype, size) for _ in range(3))
    mask = torch.empty(2, 1, 128, 128, dtype=dtype, device=fake.device) if masked else None
    assert attention.kernel(attention.Call(query, key, value, mask, dropout, False, capability)) == expected


def test_inference_may_use_flash_where_training_may_not(on):
    fake = on(RTX4090)
    query = heads(fake, BF16, 200)
    with torch.no_grad():
        assert attention.kernel(attention.Call(query, query, query, None, 0.0, False, RTX4090)) == "flash"


@pytest.mark.parametrize(
    "capability,dtype,expected",
    [
        (A100, BF16, {(2, 4, 100, 64), (2, 4, 100)}),  # the heads and a log-sum-exp a row
        (A100, FP32, {(2, 4, 100, 64), (2, 4, 128)}),  # the same, padded to 32
        (V100, BF16, None),  # the whole matrix of weights
    ],
)
def test_what_is_kept(on, capability, dtype, expected):
    fake, shapes = on(capability), set()

    def pack(tensor):
        shapes.add(tuple(tensor.shape))
        return tensor

    query = heads(fake, dtype, length=100)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = torch.nn.functional.scaled_dot_product_attention(query, query * 1, query * 1)
    out.sum().backward()
    assert query.grad.shape == query.shape and out.dtype == dtype
    if expected is None:
        assert any(shape[-2:] == (100, 100) for shape in shapes)
    else:
        kept = {shape for shape in shapes if len(shape) > 2 and shape[-1] != 0}
        assert kept == expected


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_efficient_kernel_keeps_nothing_else_on_the_gpu(on, dropout):
    """The seed and the offset of its random numbers are numbers of the host."""
    fake, kept = on(A100), []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    query = heads(fake, FP32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.nn.functional.scaled_dot_product_attention(query, query, query, dropout_p=dropout)
    numbers = [tensor for tensor in kept if not tensor.dim()]
    assert len(numbers) == 2 and all(number.is_cpu for number in numbers)


def test_rows_of_three_dimensions_are_computed_by_hand(on):
    """Heads without a batch, as (H, T, D): no kernel takes them."""
    fake = on(H100)
    query = torch.empty(4, 128, 64, dtype=BF16, device=fake.device, requires_grad=True)
    assert attention.kernel(attention.Call(query, query, query, None, 0.0, True, H100)) == "math"
    out = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    out.sum().backward()
    assert out.shape == query.grad.shape == query.shape


def test_head_sizes_are_padded_for_flash_and_cut_again(on):
    fake = on(A100)
    query = heads(fake, BF16, size=36)
    out = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert out.shape == query.shape
    out.sum().backward()
    assert query.grad.shape == query.shape


def test_a_mask_of_odd_length_is_padded_for_the_efficient_kernel(on):
    fake = on(A100)
    query = heads(fake, BF16, length=100)
    mask = torch.ones(2, 1, 100, 100, dtype=torch.bool, device=fake.device)
    out = torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    out.sum().backward()
    assert query.grad.shape == query.shape


@pytest.mark.parametrize(
    "capability,dtype,expected", [(A100, BF16, "flash"), (H100, BF16, "cudnn"), (A100, FP32, "math")]
)
def test_heads_that_share_keys(on, capability, dtype, expected):
    fake = on(capability)
    query, key, value = heads(fake, dtype), heads(fake, dtype, count=2), heads(fake, dtype, count=2)
    if expected != "math" or not attention.EFFICIENT_HAS_GQA:
        assert attention.kernel(attention.Call(query, key, value, None, 0.0, True, capability)) == expected
    torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    ).sum().backward()
    assert key.grad.shape == key.shape


def test_backward_workspaces_by_hand(on):
    fake = on(A100)
    query, key = (heads(fake, BF16, size=64, length=100, count=count) for count in (4, 2))
    flash, efficient = (f"_scaled_dot_product_{name}_attention_backward" for name in ("flash", "efficient"))
    rows = 2 * 4 * 128  # B, H, and T padded to 128
    of_heads = 2 * (2 * 4 * 100 * 64)  # keys or values of each head of the queries, in 16 bits
    assert attention.backward_workspaces(flash, query, query) == (4 * rows, 4 * rows * 64)
    assert attention.backward_workspaces(flash, query, key) == (4 * rows, 4 * rows * 64, of_heads, of_heads)
    assert attention.backward_workspaces(efficient, query, query) == (4 * 2 * 4 * 100, 4 * rows * 64)
    assert attention.backward_workspaces("_softmax_backward_data", query, key) == ()
    package = attention.backward_workspaces("_flash_attention_backward", query.transpose(1, 2), key.transpose(1, 2))
    assert package == attention.backward_workspaces(flash, query, key)


@pytest.mark.parametrize("size, width", [(64, 64), (36, 36), (48, 32)])  # 36: padded; of latent attention the third
def test_attention_of_the_package(on, size, width):
    fake = on(A100)
    query, key = heads(fake, BF16, size), heads(fake, BF16, size, count=2)
    value, module = heads(fake, BF16, width, count=2), torch.nn.Module()
    module.is_causal = True
    out, _ = attention.of_package(module, query, key, value, None, sliding_window=16)
    assert out.shape == (2, 128, 4, width)
    out.sum().backward()
    assert [one.grad.shape for one in (query, key, value)] == [one.shape for one in (query, key, value)]


def test_capabilities_of_equal_rules_choose_alike():
    capabilities = [(6, 0), (6, 1), V100, T4, A100, (8, 6), RTX4090, H100, B200, (10, 3), RTX5090]
    chosen: dict[tuple, set] = {}
    for capability in capabilities:
        kernels = []
        for dtype in (HALF, BF16, FP32):
            for size in (30, 36, 64, 200, 224, 256, 320):
                q = torch.empty(2, 4, 8, size, dtype=dtype, device="meta", requires_grad=True)
                for mask in (None, q):
                    kernels += [
                        attention.kernel(attention.Call(q, q, q, mask, drop, False, capability))
                        for drop in (0.0, 0.1, 0.125)
                    ]
        chosen.setdefault(attention.rules(capability), set()).add(tuple(kernels))
    assert len(chosen) == 5 and all(len(alike) == 1 for alike in chosen.values())
    assert attention.rules(RTX5090) == attention.rules((12, 1)) != attention.rules(B200)
    known = {capability: attention.rules(capability)[-1] for capability in [T4, A100, H100, (12, 1), (12, 2)]}
    assert list(known.values()) == [False, True, True, True, False]
