"""Predictions beside what others measured and published; nothing is fitted to them.

    python scripts/published.py [guide] [rtx] [a100] [--into FILE]

guide: the nine V100 rows of the Hugging Face guide, as `+experiment/guide=` has them. rtx: xMem's runs, with the
errors of xMem's own estimates beside ours. a100: full fine-tunings in bf16. Rows that cannot be built are listed
with the reason. Prints markdown; docs/reference/README.md describes the files, docs/foresight.md the outcome.
"""

from __future__ import annotations

import argparse
import csv
import functools
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from recipes import config
from recipes.foresight.validation.error_stats import rank_correlation, signed, summary
from recipes.machine import (
    gpu_specs,
    host,
)
from recipes.options import compose
from recipes.records import record
from recipes.report import reference
from recipes.units import MIB

REFERENCE = ROOT / "docs/reference"
GUIDE_CONTEXT_BYTES = 1343 * MIB  # the guide measured it; CUDA 11.2 loaded every kernel at once
GUIDE_WORDS = ["recipe=estimate", "gpu=v100_16gb", "model.attention=eager"]  # there was no other attention
RTX_CAPABILITY = {"NVIDIA GeForce RTX 3060": (8, 6), "NVIDIA GeForce RTX 4060": (8, 9)}  # NVIDIA's list of CUDA GPUs
A100 = "a100_80gb"


def rows(name: str) -> list[dict[str, str]]:
    """A file of docs/reference."""
    return list(csv.DictReader((REFERENCE / f"{name}.csv").read_text().splitlines()))


def table(head: list[str], lines: list[list[str]]) -> str:
    """Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def error(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"


def mib(value: float) -> str:
    return f"{value / MIB:.0f}"


def together(name: str, errors) -> str:
    """One line on some errors."""
    found = summary(errors)
    return (
        f"{name}: {found.count} rows, median size {found.median_size:.2%}, signed median {found.median:+.2%}, "
        f"worst {found.worst:+.1%}."
    )


# --- the guide --------------------------------------------------------------------------------------


def guide_row(name: str) -> tuple[record.Record, int]:
    """(the estimate on today's libraries, the bytes that the allocator would have reserved with those of then)."""
    from recipes.foresight import prediction, simulation
    from recipes.foresight.validation import published_runs

    cfg, outcome, problems = compose.compose(ROOT / "conf", *GUIDE_WORDS, f"+experiment/guide={name}")
    if problems:
        raise ValueError(f"{name}: {' '.join(problems)}")
    with tempfile.TemporaryDirectory() as folder:
        prediction.fill(cfg, outcome, simulation.simulate_step(cfg, folder, prediction.allocator_bytes(cfg)))
        with published_runs.january_2022():
            then = simulation.simulate_step(cfg, folder, cfg.gpu.memory_bytes - GUIDE_CONTEXT_BYTES)
    return outcome, then.demand.peak_reserved_bytes


def guide() -> str:
    """The guide's rows as this repository's experiments: on today's libraries, and as those of then would do them."""
    lines, speeds = [], []
    errors = {"Device memory, today's libraries": [], "Device memory, libraries of then": [], "Speed": []}
    for label, told in reference.guide().items():
        name = label.split()[0].removeprefix("experiment=")
        if "recipe=trainer" not in label:  # the Accelerate row has the memory of its Trainer row, and no speed
            continue
        outcome, reserved_then = guide_row(name)
        measured, speed = told["device_used_bytes"], outcome.speed.samples_per_second
        today = outcome.memory.peak_reserved_bytes + GUIDE_CONTEXT_BYTES
        then = reserved_then + GUIDE_CONTEXT_BYTES
        found = [signed(today, measured), signed(then, measured), signed(speed, told["samples_per_second"])]
        for collected, one in zip(errors.values(), found):
            collected.append(one)
        speeds.append((speed, told["samples_per_second"]))
        lines.append(
            [
                name,
                mib(measured),
                mib(today),
                error(found[0]),
                mib(then),
                error(found[1]),
                mib(outcome.memory.device_used_bytes),
                outcome.status,
                f"{told['samples_per_second']:.2f}",
                f"{speed:.2f}",
                error(found[2]),
            ]
        )
    head = [
        "experiment",
        "published device MiB",
        "today's libraries",
        "error",
        "libraries of then",
        "error",
        "today's context, too",
        "status",
        "published samples/s",
        "predicted",
        "error",
    ]
    return "\n\n".join(
        [
            f"## {reference.GUIDE_SOURCE}",
            table(head, lines),
            *(together(name, collected) for name, collected in errors.items()),
            f"Rank correlation of the speeds: {rank_correlation(speeds):.3f}.",
        ]
    )


# --- xMem's runs ------------------------------------------------------------------------------------


@functools.cache
def rtx_bytes(model: str, batch: int, length: int, optimizer: str, mode: int, device: str, total_bytes: int) -> int:
    """Reserved bytes of an iteration of xMem's loop."""
    from recipes.foresight.validation import published_runs

    capacity = total_bytes - gpu_specs.options()["rtx3090_24gb"]["context_bytes"]  # no figure of these two cards
    taken = published_runs.xmem(model, batch, length, optimizer, mode, RTX_CAPABILITY[device], capacity)
    return taken.demand.peak_reserved_bytes


def rtx() -> str:
    """Ours beside xMem's estimate, row by row."""
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
                error(ours[-1]),
                error(theirs[-1]),
            ]
        )
    better = sum(abs(mine) < abs(other) for mine, other in zip(ours, theirs))
    head = [
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
    return "\n\n".join(
        [
            "## xMem's runs in fp32, RTX 3060 and 4060, torch 2.6.0: reserved against NVML's growth",
            table(head, lines),
            together("Ours", ours),
            together("xMem's", theirs),
            f"Ours is closer on {better} of {len(lines)} rows.",
        ]
    )


# --- fms-acceleration's runs ------------------------------------------------------------------------


def a100() -> str:
    """Allocated, device and speed of the fine-tunings on one GPU."""
    from recipes.foresight.speed import roofline
    from recipes.foresight.validation import published_runs

    chosen = config.from_dict(gpu_specs.options()[A100], config.Gpu)
    lines, left_out, errors = [], [], {"allocated": [], "device": [], "speed": []}
    for row in rows("published_a100_bf16"):
        batch, length = int(row["per_device_batch"]), int(float(row["seq_len"]))
        if row["num_gpus"] != "1":
            left_out.append(
                f"- {row['model']}, {row['num_gpus']} GPUs, batch {batch}: FSDP1, which keeps a layer's weights "
                "as one flat tensor; this repository has FSDP2, which keeps each apart."
            )
            continue
        taken = published_runs.fine_tuning(
            row["model"], batch, length, (8, 0), chosen.memory_bytes - chosen.context_bytes
        )
        speed = batch * length / roofline.predict(taken.tally, chosen, "bf16_pure").step_seconds
        device = taken.demand.peak_reserved_bytes + chosen.context_bytes
        pairs = {
            "allocated": (taken.demand.peak_allocated_bytes, float(row["peak_allocated_bytes"])),
            "device": (device, float(row["device_peak_mib"]) * MIB),
            "speed": (speed, float(row["tokens_per_s_per_gpu"])),
        }
        cells = [row["model"], str(batch), str(length)]
        for key, (predicted, measured) in pairs.items():
            errors[key].append(signed(predicted, measured))
            shown = mib if key != "speed" else "{:.0f}".format
            cells += [shown(measured), shown(predicted), error(errors[key][-1])]
        lines.append(cells)
    head = [
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
    return "\n\n".join(
        [
            "## Full fine-tuning in bf16 on an A100 80 GB, torch 2.4.1",
            table(head, lines),
            *(together(key.capitalize(), found) for key, found in errors.items()),
            "Not built:\n\n" + "\n".join(left_out),
        ]
    )


TABLES = {"guide": guide, "rtx": rtx, "a100": a100}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; all of them where none is named"
    )
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the page there, too")
    told = parser.parse_args(words)
    unknown = [name for name in told.tables if name not in TABLES]
    if unknown:
        print(f"refused: there is no table {', '.join(unknown)}. Choose of {', '.join(TABLES)}.", file=sys.stderr)
        return 2
    import transformers

    transformers.logging.set_verbosity_error()
    parts = []
    for name in told.tables or TABLES:
        parts.append(TABLES[name]())
        print(parts[-1] + "\n", flush=True)
    if told.into:
        libraries = ", ".join(f"{name} {host.version(name)}" for name in ("torch", "transformers", "bitsandbytes"))
        told.into.write_text(
            "# Predictions against published measurements\n\nMade by `python scripts/published.py --into` "
            f"on {time.strftime('%Y-%m-%d')}, on a CPU, with {libraries}. Every figure that is not a "
            "prediction was measured by others: docs/reference/README.md.\n\n" + "\n\n".join(parts) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
