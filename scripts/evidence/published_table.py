"""Predictions beside what others measured and published, as Markdown tables; nothing is fitted to the measurements.

The measurements are the files of docs/reference, whose README describes them; the outcome: docs/results/estimates.md.
"""

from __future__ import annotations

import csv
import functools
import tempfile
from collections.abc import Iterable

from checkout import ROOT

import published_runs
import published_speed
from error_stats import rank_correlation, signed, summary
from markdown_table import markdown, percent

from legroom import config, paths
from legroom.estimator.speed import roofline
from legroom.foresight import prediction, simulation
from legroom.machine import gpu_specs
from legroom.options import compose
from legroom.records.record import Record
from legroom.units import MIB

GUIDE_CONTEXT_BYTES = 1343 * MIB  # measured by the guide; CUDA 11.2 loads every kernel when the context is created
GUIDE_OVERRIDES = ["recipe=estimate", "gpu=v100_16gb", "model.attention=eager"]  # transformers 4.15 had no other
RTX_CAPABILITY = {"NVIDIA GeForce RTX 3060": (8, 6), "NVIDIA GeForce RTX 4060": (8, 9)}  # NVIDIA's list of CUDA GPUs
A100 = "a100_80gb"

GUIDE_SOURCE = "the guide, V100 16 GB, bert-large-uncased, January 2022"
GUIDE_HEADINGS = [
    "experiment",
    "published device MiB",
    "today's libraries",
    "error",
    "libraries of January 2022",
    "error",
    "today's context, too",
    "status",
    "published samples/s",
    "predicted",
    "error",
]
RTX_HEADINGS = [
    "model",
    "batch",
    "optimizer",
    "zero_grad_mode",
    "RTX",
    "measured MiB",
    "predicted",
    "error",
    "xMem's error",
]
A100_HEADINGS = [
    "model",
    "batch",
    "tokens",
    "allocated MiB",
    "predicted",
    "error",
    "device MiB",
    "predicted",
    "error",
    "tokens/s",
    "predicted",
    "error",
]


def rows(name: str) -> list[dict[str, str]]:
    """The rows of docs/reference/<name>.csv."""
    return list(csv.DictReader((ROOT / "docs" / "reference" / f"{name}.csv").read_text().splitlines()))


def mib(size_bytes: float) -> str:
    return f"{size_bytes / MIB:.0f}"


def summary_line(name: str, errors: Iterable[float | None]) -> str:
    """One line on the errors of a column."""
    total = summary(errors)
    assert total is not None, "a table without rows"
    return (
        f"{name}: {total.count} rows, median size {total.median_size:.2%}, signed median {total.median:+.2%}, "
        f"worst {total.worst:+.1%}."
    )


# --- the guide --------------------------------------------------------------------------------------


def guide_rows() -> list[dict[str, str]]:
    """The guide's rows that were trained with the Trainer: the Accelerate row has no speed."""
    return [row for row in rows("guide_v100") if row["recipe"] == "trainer"]


def experiment_of(row: dict[str, str]) -> str:
    """The name of a guide's row in `+experiment/guide=`."""
    return row["name"].replace("+", "_")


def guide_row(name: str) -> tuple[Record, int]:
    """Estimate one of the guide's experiments.

    Returns the record with today's libraries, and the bytes that CUDA's allocator would have reserved with the
    libraries of January 2022.
    """
    cfg, outcome = compose.compose_valid(paths.CONF, *GUIDE_OVERRIDES, f"+experiment/guide={name}")
    with tempfile.TemporaryDirectory() as folder:
        prediction.fill(cfg, outcome, simulation.simulate_step(cfg, folder, prediction.allocator_bytes(cfg)))
        with published_runs.libraries_of_january_2022():
            simulated = simulation.simulate_step(cfg, folder, cfg.gpu.memory_bytes - GUIDE_CONTEXT_BYTES)
    assert simulated.demand is not None, "the guide's rows are of a GPU"
    return outcome, simulated.demand.peak_reserved_bytes


def guide() -> str:
    """The nine V100 rows of the Hugging Face guide, as `+experiment/guide=` has them."""
    lines, speeds = [], []
    errors = {"Device memory, today's libraries": [], "Device memory, libraries of January 2022": [], "Speed": []}
    for row in guide_rows():
        name = experiment_of(row)
        outcome, reserved_2022 = guide_row(name)
        measured = int(row["device_used_mb"]) * MIB  # NVML's 'MB' are MiB
        published_speed = float(row["samples_per_second"])
        speed = outcome.speed.samples_per_second
        assert outcome.memory.peak_reserved_bytes is not None, "the guide's rows are of a GPU"
        today = outcome.memory.peak_reserved_bytes + GUIDE_CONTEXT_BYTES
        in_2022 = reserved_2022 + GUIDE_CONTEXT_BYTES
        row_errors = [
            signed(today, measured),
            signed(in_2022, measured),
            signed(speed, published_speed),
        ]
        for column, error in zip(errors.values(), row_errors):
            column.append(error)
        speeds.append((speed, published_speed))
        lines.append(
            [
                name,
                mib(measured),
                mib(today),
                percent(row_errors[0]),
                mib(in_2022),
                percent(row_errors[1]),
                mib(outcome.memory.device_used_bytes or 0),
                outcome.status,
                f"{published_speed:.2f}",
                f"{speed:.2f}",
                percent(row_errors[2]),
            ]
        )
    return "\n\n".join(
        [
            f"## {GUIDE_SOURCE}",
            markdown(GUIDE_HEADINGS, lines),
            *(summary_line(name, column) for name, column in errors.items()),
            f"Rank correlation of the speeds: {rank_correlation(speeds):.3f}.",
        ]
    )


# --- xMem's runs ------------------------------------------------------------------------------------


@functools.cache
def rtx_bytes(model: str, batch: int, length: int, optimizer: str, mode: int, device: str, total_bytes: int) -> int:
    """Predicted reserved bytes of an iteration of xMem's loop. The arguments are columns of the file."""
    # No context was published for these two cards: that of the RTX 3090 is subtracted.
    capacity = total_bytes - gpu_specs.options()["rtx3090_24gb"]["context_bytes"]
    run = published_runs.xmem(model, batch, length, optimizer, mode, RTX_CAPABILITY[device], capacity)
    return run.demand.peak_reserved_bytes


def rtx() -> str:
    """xMem's runs, with the errors of xMem's own estimates beside the errors of these predictions."""
    lines, ours, theirs = [], [], []
    for row in rows("published_rtx_fp32"):
        measured = int(row["measured_peak_bytes"])
        predicted = rtx_bytes(
            row["model"],
            int(row["batch"]),
            int(float(row["seq_len"])),
            row["optimizer"],
            int(row["zero_grad_mode"]),
            row["gpu"],
            int(row["gpu_total_bytes"]),
        )
        ours.append(signed(predicted, measured))
        theirs.append(signed(int(row["xmem_bytes"]), measured))
        lines.append(
            [
                row["model"].split("/")[-1],
                row["batch"],
                row["optimizer"],
                row["zero_grad_mode"],
                row["gpu"].split()[-1],
                mib(measured),
                mib(predicted),
                percent(ours[-1]),
                percent(theirs[-1]),
            ]
        )
    closer = sum(abs(own) < abs(other) for own, other in zip(ours, theirs))
    return "\n\n".join(
        [
            "## xMem's runs in fp32, RTX 3060 and 4060, torch 2.6.0: reserved against NVML's growth",
            markdown(RTX_HEADINGS, lines),
            summary_line("Ours", ours),
            summary_line("xMem's", theirs),
            f"Ours is closer on {closer} of {len(lines)} rows.",
        ]
    )


# --- fms-acceleration's runs ------------------------------------------------------------------------


def a100() -> str:
    """fms-acceleration's full fine-tunings on one GPU: allocated memory, device memory, speed.

    Rows that cannot be built are listed with the reason.
    """
    gpu = config.from_dict(gpu_specs.options()[A100], config.Gpu)
    lines, left_out, errors = [], [], {"allocated": [], "device": [], "speed": []}
    for row in rows("published_a100_bf16"):
        batch, length = int(row["per_device_batch"]), int(float(row["seq_len"]))
        if row["num_gpus"] != "1":
            left_out.append(
                f"- {row['model']}, {row['num_gpus']} GPUs, batch {batch}: FSDP1, which keeps a layer's weights "
                "as one flat tensor; this repository has FSDP2, which keeps each apart."
            )
            continue
        run = published_runs.fine_tuning(row["model"], batch, length, (8, 0), gpu.memory_bytes - gpu.context_bytes)
        pairs = {
            "allocated": (run.demand.peak_allocated_bytes, float(row["peak_allocated_bytes"])),
            "device": (run.demand.peak_reserved_bytes + gpu.context_bytes, float(row["device_peak_mib"]) * MIB),
            "speed": (
                batch * length / roofline.predict(run.tally, gpu, "bf16_pure").step_seconds,
                float(row["tokens_per_s_per_gpu"]),
            ),
        }
        cells = [row["model"], str(batch), str(length)]
        for key, (predicted, measured) in pairs.items():
            errors[key].append(signed(predicted, measured))
            shown = mib if key != "speed" else "{:.0f}".format
            cells += [shown(measured), shown(predicted), percent(errors[key][-1])]
        lines.append(cells)
    return "\n\n".join(
        [
            "## Full fine-tuning in bf16 on an A100 80 GB, torch 2.4.1",
            markdown(A100_HEADINGS, lines),
            *(summary_line(key.capitalize(), column) for key, column in errors.items()),
            "Not built:\n\n" + "\n".join(left_out),
        ]
    )


def intervals() -> str:
    """The intervals of time by class."""
    import published_intervals  # imports this module

    return published_intervals.table()


TABLES = {"intervals": intervals, "guide": guide, "rtx": rtx, "a100": a100, "speed": published_speed.table}
