"""Which tensors autocast casts, and keeps, on the fake device; and what libraries find there."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from conftest import compose
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.foresight.fake_gpu import backend, library_patches
from legroom.foresight.fake_gpu.device import FakeDevice
from legroom.foresight.fake_gpu.fake_storages import DEVICE_TYPE
from legroom.ranks import collectives
from legroom.third_party import accelerate_private

HALF, FP32 = torch.float16, torch.float32


@pytest.fixture
def gpu():
    with FakeDevice((8, 0)) as fake:
        yield fake


def tensor(*shape, dtype=FP32, grad=False):
    return torch.empty(shape, device=DEVICE_TYPE, dtype=dtype, requires_grad=grad)


class Casts(TorchDispatchMode):
    """Counts the casts of tensors that have eight columns."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default and args[0].shape[-1:] == (8,)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    "make, casts",
    [
        (lambda: tensor(4, 8, grad=True), 1),
        (lambda: tensor(4, 8), 3),  # needs no gradient
        (lambda: tensor(4, 8, grad=True) * 1, 3),  # has a history
        (lambda: tensor(2, 4, 8, grad=True)[0], 3),  # is a view with one
        (lambda: tensor(2, 4, 8)[0].requires_grad_(), 3),  # is a view, and a leaf
        (lambda: tensor(4, 8, dtype=torch.bfloat16, grad=True), 3),  # of another type than fp32
        (lambda: tensor(4, 8, dtype=HALF, grad=True), 0),
    ],
)
def test_a_cast_is_kept_of_leaves_in_fp32_that_are_trained(gpu, make, casts):
    weight, rows = make(), tensor(3, 4, dtype=HALF)
    with torch.autocast(DEVICE_TYPE, HALF), Casts() as seen:
        for _ in range(3):
            assert (rows @ weight).dtype == HALF
    assert seen.count == casts


def test_a_cast_to_fp32_is_never_kept(gpu):
    weight = tensor(4, 8, dtype=HALF, grad=True)
    with torch.autocast(DEVICE_TYPE, HALF), Casts() as seen:
        for _ in range(3):
            assert weight.exp().dtype == FP32
    assert seen.count == 3


def test_what_is_no_float_of_the_device_keeps_its_type(gpu):
    with torch.autocast(DEVICE_TYPE, HALF):
        double = tensor(4, 4, dtype=torch.float64)
        assert (double @ double).dtype == torch.float64 and torch.ones(2, 2).exp().dtype == FP32
        assert tensor(4, dtype=torch.int64).sum().dtype == torch.int64
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == FP32, "on the host"
        assert torch.linalg.multi_dot([tensor(2, 3), tensor(3, 4), tensor(4, 2)]).dtype == HALF, "in a list"


def test_a_sum_has_the_widest_type_and_a_result_the_one_that_is_asked_for(gpu):
    half, whole = tensor(4, dtype=HALF), tensor(4)
    with torch.autocast(DEVICE_TYPE, HALF):
        assert torch.dot(half, half).dtype == HALF and torch.dot(half, whole).dtype == FP32
        assert torch.addcmul(half, half, whole).dtype == FP32 and torch.addcmul(half, half, half).dtype == HALF
        assert half.cumsum(0).dtype == FP32 and half.cumsum(0, dtype=HALF).dtype == HALF
        for run in (torch.softmax, torch.log_softmax):
            assert run(half, 0).dtype == FP32 and run(half, 0, torch.float64).dtype == torch.float64
        assert torch.ops.aten.norm.ScalarOpt_dim(half[None], 2, [1], True).shape == (1, 1)
        assert torch.ops.aten.norm.ScalarOpt_dim(half[None], 2, [1]).shape == (1,)
        assert torch.ops.aten.norm.Scalar(half).dtype == FP32
        assert torch.nn.functional.rms_norm(half, (4,)).dtype in (HALF, FP32)


def test_autocast_is_on_for_cuda_where_it_is_on_here(gpu):
    asked = ["cuda", DEVICE_TYPE, "cpu"]
    with torch.autocast(DEVICE_TYPE, HALF):
        assert torch.is_autocast_enabled() and [*map(torch.is_autocast_enabled, asked)] == [True, True, False]
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.is_autocast_enabled() and [*map(torch.is_autocast_enabled, asked)] == [False, False, True]


def test_streams_and_random_states_do_nothing(gpu):
    stream = backend.Stream("device", priority=1)
    assert stream.record_event() is stream and stream.query() is True and stream.elapsed_time(stream) == 1.0
    module = backend.MODULE
    with module.stream(stream), backend.no_stream(stream):
        assert stream.wait() is stream.record() is stream.synchronize() is None
    assert module.get_rng_state().numel() == 0 and module.is_available() is True
    assert isinstance(module.current_stream(), backend.Stream)
    assert module.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]


def test_outside_of_a_simulation_no_device_is_available():
    with FakeDevice((8, 0)):
        pass
    assert backend.MODULE.is_available() is False


# --- libraries -------------------------------------------------------------------------------------


def test_training_arguments_are_for_a_gpu_that_is_not_there(tmp_path):
    cfg = compose("recipe=estimate", "gpu=a100_40gb", "precision=bf16").cfg
    for device, pinned in ((torch.device("cpu"), True), (torch.device("meta"), False)):
        with accelerate_private.state_of_its_own():
            args = library_patches.arguments_for(cfg, str(tmp_path), device)
        assert args.dataloader_num_workers == 0 and args.bf16
        if not pinned:
            assert args.device == device and args.dataloader_pin_memory is False


@pytest.mark.parametrize(
    "words, ranks",
    [
        ("parallelism=ddp parallelism.num_processes=4", 4),
        ("parallelism=fsdp parallelism.num_processes=1", 1),
        ("parallelism=zero parallelism.num_processes=1", 1),
        ("", 1),
    ],
)
def test_a_rank_is_one_of_a_group_that_sends_nothing(words, ranks):
    cfg = compose("recipe=estimate", "gpu=a100_40gb", *words.split()).cfg
    before = dict(os.environ)
    with FakeDevice((8, 0)) as fake:
        try:
            with library_patches.rank_of(cfg, fake, ranks - 1):
                assert dist.is_initialized() is bool(words)
                if words:
                    assert (dist.get_rank(), dist.get_world_size()) == (ranks - 1, ranks)
                    assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == (str(ranks - 1), str(ranks - 1))
                    summed = collectives.all_reduce_sum([2, 3.0], fake.device)
                    assert summed.tolist() == [2 * ranks, 3 * ranks] and summed.dtype == torch.float64
                os.environ["LEFT_BEHIND"] = "1"
                raise KeyError
        except KeyError:
            pass
        assert bool(os.environ.pop("LEFT_BEHIND", None)) is not bool(words)
    assert dict(os.environ) == before and not dist.is_initialized()
