"""The split of the published measurements of time is fixed: rows that were fitted on never judge."""

from __future__ import annotations

import held_out
import pytest

needs_files = pytest.mark.skipif(not held_out.STEPS.exists(), reason=held_out.MISSING)

HELD_OUT = [
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA B200",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA H200",
    "NVIDIA RTX A6000",
    "Tesla V100-SXM2-16GB",
]


def test_names_of_one_model_are_one_board():
    assert held_out.board("NVIDIA_H100_PCIe [H100_80GB_PCIe5_v1]") == held_out.board("NVIDIA H100 PCIe")


@needs_files
def test_every_third_model_in_alphabetical_order_is_held_out():
    rows = held_out.steps()
    assert len(rows) == 69
    assert sorted({row["board"] for row in rows if row["held_out"] == "yes"}) == HELD_OUT
    assert held_out.held_out_boards([row["gpu"] for row in rows]) == HELD_OUT


def test_a_shape_is_held_out_by_its_numbers_alone():
    assert held_out.is_held_out_shape("linear", (1, 512, 1024, 1024)) is True
    assert held_out.is_held_out_shape("linear", (1, 1, 1024, 1024)) is False


@needs_files
@pytest.mark.parametrize("name", ["linear", "bmm", "elem", "softmax", "ln"])
def test_half_of_the_kernels_shapes_are_held_out_on_every_board(name):
    rows = held_out.kernels(name)
    shapes = {(row["OPName"], held_out.shape_of(row)): row["held_out"] for row in rows}
    assert 0.4 < sum(value == "yes" for value in shapes.values()) / len(shapes) < 0.6
    assert all(row["held_out"] == shapes[row["OPName"], held_out.shape_of(row)] for row in rows)
