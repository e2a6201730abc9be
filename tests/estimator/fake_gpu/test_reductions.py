"""Buffers of CUDA's reductions, beside what torch 2.13 allocated for them on emulated cards."""

import pytest
import torch

from legroom.estimator.fake_gpu import reductions
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.op_trace import OpTrace

RTX_4090, H100, T4 = (1536, 128), (2048, 132), (1024, 40)  # threads of a multiprocessor, multiprocessors
LAST = [2]


@pytest.mark.parametrize(
    "card, shape, dimensions, accumulated_bytes, expected",
    [
        (RTX_4090, (2048, 768), [0], 4, (12_582_912, 24)),
        (RTX_4090, (2048, 3072), [0], 4, (50_331_648, 96)),
        (T4, (2048, 3072), [0], 4, (22_020_096, 96)),
        (RTX_4090, (4, 512, 768), [0], 4, ()),  # four values each
        (RTX_4090, (4, 512, 768), LAST, 4, ()),  # a warp for each row
        (RTX_4090, (50257, 768), [], 4, (1536, 4)),
        (RTX_4090, (50257, 768), [], 2, (768, 4)),  # the largest of all, in 16 bits
    ],
)
def test_what_a_reduction_of_a_contiguous_tensor_takes(card, shape, dimensions, accumulated_bytes, expected):
    strides = torch.empty(shape, device="meta").stride()
    assert reductions.buffers(shape, strides, dimensions, accumulated_bytes, *card) == expected


def test_a_sum_over_the_rows_of_a_transposed_matrix_is_one_along_memory():
    assert reductions.buffers((2048, 768), (1, 2048), [0], 4, *RTX_4090) == ()


def test_a_sum_on_the_fake_gpu_has_its_buffers():
    model = torch.nn.Linear(4, 4, bias=False, device="meta")
    with FakeDevice((8, 9), 128) as fake, OpTrace(fake, model, torch.optim.SGD(model.parameters())) as trace:
        x = torch.empty(2048, 768, device=fake.device, dtype=torch.bfloat16)
        x.sum(0)
        x.sum(-1)
        torch.empty(2048, 768, device=fake.device, dtype=torch.bool).sum(0)  # as integers of 64 bits
    assert [each.sizes for each in trace.workspaces] == [(12_582_912, 24), (12_582_912, 25_165_824, 24)]
