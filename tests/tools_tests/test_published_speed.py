"""Published times beside predicted ones: the figures of the boards, kernels as operations, and whole steps."""

from __future__ import annotations

import held_out
import published_speed
import published_steps
import pytest

from legroom.foresight.speed.operation_names import MATMUL

needs_files = pytest.mark.skipif(not held_out.STEPS.exists(), reason=held_out.MISSING)


@needs_files
def test_every_published_board_has_figures():
    boards = {row["board"] for row in held_out.steps()} | {row["board"] for row in held_out.kernels("linear")}
    for board in boards:
        assert published_speed.gpu_of(board).device_name == board


def test_a_linear_layer_folds_its_batch_into_the_rows_and_a_batched_product_does_not():
    row = {"OPName": "linear", "B": "4", "M": "8", "N": "16", "K": "32"}
    linear, batched = published_speed.operation_of(row), published_speed.operation_of(row | {"OPName": "bmm"})
    assert linear.kind == batched.kind == MATMUL
    assert (linear.shape, batched.shape) == ((1, 32, 16, 32), (4, 8, 16, 32))
    assert linear.flops == batched.flops
    assert batched.bytes - linear.bytes == 3 * 32 * 16 * 4  # each batch has weights of its own


def test_the_rows_precision_is_what_the_hardware_did():
    row = {"precision": "fp32 run (TF32 on by default in NGC containers on Ampere and later)", "gpu": "NVIDIA_A10"}
    assert published_steps.precision_of(row) == "tf32"
    assert published_steps.precision_of(row | {"gpu": "Quadro_RTX_8000"}) == "fp32"
    assert published_steps.precision_of(row | {"precision": "pure bf16 weights"}) == "bf16_pure"


@needs_files
def test_a_published_step_counts_the_flops_of_its_model():
    row = next(row for row in held_out.steps() if row["board"] == "NVIDIA A10" and row["batch"] == "48")
    tally, _ = published_steps.step_of(row)
    flops = sum(operation.flops * times for counts in tally.counts.values() for operation, times in counts.items())
    tokens, weights = 48 * 384, 85_000_000  # of the encoder's matrices
    attention = 12 * 12 * 768 * 384 * tokens  # layers, two products forward and four backward
    assert flops == pytest.approx(6 * weights * tokens + attention, rel=0.02)


def test_without_the_published_files_the_page_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(held_out, "STEPS", tmp_path / "published_speed.csv")
    assert held_out.MISSING in published_speed.table()


@pytest.mark.parametrize(
    "board,fp32_tflops,bandwidth_gb_per_second",
    [("Tesla P4", 5.5, 192), ("Quadro RTX 8000", 16.3, 672)],  # NVIDIA's data sheets
)
def test_boards_beside_the_menu_have_the_figures_of_their_data_sheets(board, fp32_tflops, bandwidth_gb_per_second):
    gpu = published_speed.gpu_of(board)
    assert (gpu.fp32_tflops, gpu.bandwidth_gb_per_second) == (fp32_tflops, bandwidth_gb_per_second)
