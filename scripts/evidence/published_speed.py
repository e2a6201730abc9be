"""`scripts/evidence/published.py speed`: predicted beside published seconds, of whole steps and of single kernels.

The files lie beside the checkout (`held_out.FOLDER`). Rows that are held out judge; the others may be fitted on.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Iterable

import held_out
from error_stats import quantile, signed, summary
from markdown_table import markdown, percent

from legroom import config
from legroom.config import Gpu
from legroom.estimator.speed import efficiencies, roofline
from legroom.estimator.speed.efficiencies import Efficiencies
from legroom.estimator.speed.operation_names import ELEMENTWISE, MATMUL, REDUCTION
from legroom.estimator.speed.operations import Operation
from legroom.machine import gpu_specs

# Boards whose figures conf/gpu/ does not have: the option that is nearest, and the vendor's figures that differ.
BOARDS: dict[str, tuple[str, dict]] = {
    "Quadro RTX 8000": (
        "t4_16gb",
        {"chip": "RTX 8000", "fp32_tflops": 16.3, "fp16_tflops": 130.5}
        | {"bandwidth_gb_per_second": 672, "sm_count": 72},
    ),
    "Tesla P4": (
        "t4_16gb",
        {"chip": "P4", "fp32_tflops": 5.5, "fp16_tflops": None, "capability": "6.1"}
        | {"bandwidth_gb_per_second": 192, "sm_count": 20},
    ),
}
STEP_HEADINGS = ["board", "precision", "batch x tokens", "held out", "published ms", "predicted", "error"]
KERNEL_CLASSES = {"linear": "linear", "bmm": "bmm", "elem": "element-wise", "softmax": "softmax", "ln": "layer norm"}
FP32_BYTES = 4
EVENT_PAIR_SECONDS = 24e-6  # in each published latency: docs of the data set
# Tensors that an element-wise kernel reads and writes: two operands, or one and a number (`u`), and the result.
TWO_OPERANDS = ("add", "mul", "div", "pow")


@functools.cache
def gpu_of(board: str) -> Gpu:
    """The figures of a published board: of conf/gpu/, a variant of it, or of BOARDS."""
    memory = re.search(r"(\d+)GB", board)  # tells the A100's two sizes apart
    found = gpu_specs.find(board, int(memory[1]) * 10**9 if memory else 0)
    if found is None:
        option, own = BOARDS[board]
        found = gpu_specs.options()[option] | own
    return config.from_dict(found | {"device_name": board}, Gpu)


def operation_of(row: dict[str, str]) -> Operation:
    """A kernel's row as an operation, as a step's tally has it."""
    name = row["OPName"]
    if name in ("linear", "bmm"):
        batch, rows, columns, depth = held_out.shape_of(row)
        moved = batch * (rows * depth + columns * depth + rows * columns)
        # `linear` folds its batch into the rows.
        shape = (batch, rows, columns, depth) if name == "bmm" else (1, batch * rows, columns, depth)
        if name == "linear":
            moved = batch * rows * depth + columns * depth + batch * rows * columns
        flops = 2 * batch * rows * columns * depth
        return Operation("bmm" if name == "bmm" else "addmm", MATMUL, "fp32", flops, FP32_BYTES * moved, 1, shape)
    elements = held_out.shape_of(row)[0] * held_out.shape_of(row)[1]
    if name in ("softmax", "ln"):
        full = {"softmax": "_softmax", "ln": "native_layer_norm"}[name]
        moved, shape = 2 * FP32_BYTES * elements, held_out.shape_of(row)
        return Operation(full, REDUCTION, "fp32", 0, moved, 1, shape, elements=elements)
    tensors = 3 if name in TWO_OPERANDS else 2
    return Operation(name, ELEMENTWISE, "fp32", 0, tensors * FP32_BYTES * elements, 1, elements=elements)


def single_kernels(gpu: Gpu) -> Efficiencies:
    """The efficiencies of a GPU for kernels that run one by one, with pauses between them."""
    reached = efficiencies.of_gpu(gpu)
    return dataclasses.replace(reached, sustained=dict.fromkeys(reached.sustained, 1.0))


def kernel_pairs(name: str) -> list[tuple[str, bool, float, float]]:
    """(board, held out, predicted seconds, published seconds) of the kernels of a class that the table judges."""
    found = []
    for row in held_out.kernels(name):
        gpu = gpu_of(row["board"])
        predicted = EVENT_PAIR_SECONDS + roofline.device_seconds(operation_of(row), gpu, "fp32", single_kernels(gpu))
        found.append((row["board"], row["held_out"] == "yes", predicted, float(row["Latency"]) / 1000))
    return found


def step_pairs() -> list[tuple[dict[str, str], str, roofline.Prediction, float]]:
    """(row, precision, prediction, published seconds) of every published step."""
    import published_steps

    found = []
    for row in held_out.steps():
        tally, precision = published_steps.step_of(row)
        predicted = roofline.predict(tally, gpu_of(row["board"]), precision)
        found.append((row, precision, predicted, float(row["seconds_per_step"])))
    return found


def error_line(name: str, errors: Iterable[float | None]) -> list[str]:
    """A row of the table of summaries: rows, median size, size that nine of ten stay within, signed median, worst."""
    errors = [error for error in errors if error is not None]
    total = summary(errors)
    if total is None:
        return [name, "0", "", "", "", ""]
    ninth = quantile(map(abs, errors), 0.9)
    within = sum(abs(error) <= 0.25 for error in errors) / len(errors)
    return [
        name,
        str(total.count),
        f"{total.median_size:.1%}",
        f"{ninth:.1%}",
        f"{within:.0%}",
        f"{total.median:+.1%}",
        f"{total.worst:+.1%}",
    ]


SUMMARY_HEADINGS = ["", "rows", "median size", "nine of ten within", "within 25 %", "signed median", "worst"]


def table() -> str:
    """The page's part: whole steps, then kernels by class and board."""
    if not held_out.STEPS.exists():
        return f"## Published times\n\nSkipped: {held_out.MISSING}."
    lines, errors = [], collections.defaultdict(list)
    for row, precision, predicted, measured in sorted(step_pairs(), key=lambda found: found[0]["board"]):
        error = signed(predicted.step_seconds, measured)
        errors[row["held_out"]].append(error)
        milliseconds = (f"{measured * 1000:.1f}", f"{predicted.step_seconds * 1000:.1f}")
        shape = f"{row['batch']} x {row['seq_len']}"
        lines.append([row["board"], precision, shape, row["held_out"], *milliseconds, percent(error)])
    totals = [error_line("held out", errors["yes"]), error_line("may be fitted on", errors["no"])]
    kernels = collections.defaultdict(list)
    for name, title in KERNEL_CLASSES.items():
        for board, kept, predicted, measured in kernel_pairs(name):
            if kept:
                kernels[title, board].append(signed(predicted, measured))
    by_class = [error_line(f"{title}, {board}", kernels[title, board]) for title, board in sorted(kernels)]
    return "\n\n".join(
        [
            "## Steps on one GPU",
            markdown(SUMMARY_HEADINGS, totals),
            markdown(STEP_HEADINGS, lines),
            "## Single kernels in fp32 (NeuSight), held-out shapes",
            markdown(SUMMARY_HEADINGS, by_class),
        ]
    )
