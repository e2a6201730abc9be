"""CUDA's autocast on the fake device: the lists against torch's own header, and what they make of a model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.estimator.fake_gpu import autocast
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.fake_storages import DEVICE_TYPE

HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"


def listed(macro: str) -> set[str]:
    """The operations that a macro of the header names: `name` or `name.overload`."""
    body = HEADER.read_text().split(f"#define {macro}(_)")[1].split("\n\n")[0]
    found = re.findall(r"_\(\s*(\w+)(?:\s*,\s*(\w+))?\s*\)", body)
    return {".".join(filter(None, pair)) for pair in found}


@pytest.mark.parametrize(
    "macro,ours",
    [
        ("AT_FORALL_LOWER_PRECISION_FP", autocast.LISTS["lower"]),
        ("AT_FORALL_FP32", autocast.LISTS["fp32"]),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", autocast.LISTS["fp32_result"]),
        ("AT_FORALL_PROMOTE", autocast.LISTS["widest"]),
    ],
)
def test_the_lists_are_those_of_the_installed_torch(macro, ours):
    assert set(ours) == listed(macro)


@pytest.fixture
def gpu():
    with FakeDevice((7, 0)) as fake:
        yield fake


def tensor(gpu, *shape, dtype=torch.float32, grad=False):
    return torch.empty(shape, device=gpu.device, dtype=dtype, requires_grad=grad)


def test_the_last_argument_is_cast_first(gpu):
    """As in torch's wheels, whose compiler evaluates arguments from the last one on."""
    cast = []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten._to_copy.default:
                cast.append(tuple(args[0].shape))
            return func(*args, **(kwargs or {}))

    with Casts(), torch.autocast(DEVICE_TYPE, dtype=torch.float16):
        torch.addmm(tensor(gpu, 2), tensor(gpu, 4, 8), tensor(gpu, 8, 2))
    assert cast == [(8, 2), (4, 8), (2,)]


def test_products_run_in_16_bits_and_sums_in_32(gpu):
    half = torch.float16
    with torch.autocast(DEVICE_TYPE, dtype=half):
        assert (tensor(gpu, 4, 8) @ tensor(gpu, 8, 2)).dtype == half
        assert torch.softmax(tensor(gpu, 4, 8, dtype=half), -1).dtype == torch.float32
        assert tensor(gpu, 4, 8, dtype=half).sum().dtype == torch.float32
        assert torch.nn.LayerNorm(8, device=gpu.device)(tensor(gpu, 4, 8, dtype=half)).dtype == torch.float32
        assert tensor(gpu, 4, 8, dtype=half).norm().dtype == torch.float32
        assert torch.dot(tensor(gpu, 8, dtype=half), tensor(gpu, 8)).dtype == torch.float32
        assert tensor(gpu, 4, 8, dtype=half).add(tensor(gpu, 4, 8)).dtype == torch.float32  # on no list
    assert (tensor(gpu, 4, 8) @ tensor(gpu, 8, 2)).dtype == torch.float32


def test_norms_and_sums_have_the_type_that_is_asked_for_or_32_bits(gpu):
    half, double = (tensor(gpu, 4, 8, dtype=dtype) for dtype in (torch.float16, torch.float64))
    norm = torch.ops.aten.norm
    with torch.autocast(DEVICE_TYPE, dtype=torch.float16):
        for found, dtype in ((half, torch.float32), (double, torch.float64)):
            assert norm.Scalar(found, 2).dtype == norm.ScalarOpt_dim(found, 2, [1]).dtype == dtype
            assert found.sum().dtype == found.cumsum(0).dtype == found.softmax(-1).dtype == dtype
        assert norm.Scalar(half, 1).shape == () and norm.ScalarOpt_dim(half, 2, [1], True).shape == (4, 1)
        assert half.sum(dtype=torch.float64).dtype == torch.softmax(half, -1, torch.float64).dtype == torch.float64
        assert torch.ones(4, device=gpu.device, dtype=torch.int32).sum().dtype == torch.int64


class Casts(TorchDispatchMode):
    """Counts the casts of tensors of shape (8, 8)."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default and args[0].shape == (8, 8)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("cached,expected", [(True, 1), (False, 3)])
def test_a_weight_is_cast_once_until_autocast_ends(gpu, cached, expected):
    weight, x = tensor(gpu, 8, 8, grad=True), tensor(gpu, 4, 8)
    with Casts() as casts:
        for passes in (1, 2):
            with torch.autocast(DEVICE_TYPE, torch.float16, cache_enabled=cached):
                for _ in range(3):
                    x @ weight
            assert casts.count == passes * expected


def test_only_weights_are_kept(gpu):
    """What has a history, or needs no gradient, is cast each time."""
    weight, x = tensor(gpu, 8, 8), tensor(gpu, 4, 8)
    with Casts() as casts, torch.autocast(DEVICE_TYPE, torch.float16):
        for _ in range(3):
            x @ weight
    assert casts.count == 3


def test_nothing_of_it_is_left_behind():
    before = torch.clear_autocast_cache
    with FakeDevice((8, 0)):
        assert torch.clear_autocast_cache is not before
    assert torch.clear_autocast_cache is before
    with torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
