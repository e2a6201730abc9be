"""Whether nine of ten published steps lie in their intervals, by what a step waits for and what is known of it.

Every published step at hand: published_speed.csv, the guide's, fms-acceleration's full fine-tunings and adapters. A row
counts in each class that it belongs to. A forward pass alone is no training step, and is left out.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
from dataclasses import dataclass

import held_out
import published_adapters
import published_runs
import published_speed
import published_table
from markdown_table import markdown, percent

from legroom import config, paths
from legroom.estimator.speed import roofline
from legroom.foresight import prediction, simulation
from legroom.machine import gpu_specs
from legroom.options import compose

FORWARD_ALONE = "forward, no_grad, eval"
HEADINGS = ["class", "rows", "inside", "median width (high over low)", "median of predicted over published", "outside"]
WAITS_FOR = {"host": "waits for the host", "memory": "memory-bound", "arithmetic": "compute-bound"}
ADAPTERS, OLDER, HELD_OUT = "LoRA and QLoRA", "GPUs before Ampere", "GPU models that nothing was fitted to"
OTHERS = (ADAPTERS, OLDER, HELD_OUT)


@dataclass(frozen=True)
class Row:
    """A published step: its classes, the interval and the time that were predicted, and the time that was measured."""

    name: str
    classes: tuple[str, ...]
    low: float
    high: float
    predicted: float
    seconds: float

    @property
    def is_inside(self) -> bool:
        return self.low <= self.seconds <= self.high


def row(name: str, predicted: roofline.Prediction, seconds: float, *classes: str) -> Row:
    """A published step in the class of what it waits for, and in these."""
    waits = WAITS_FOR[predicted.bound_by]
    return Row(name, (waits, *classes), predicted.low_seconds, predicted.high_seconds, predicted.step_seconds, seconds)


def of_steps() -> list[Row]:
    """Of published_speed.csv."""
    found = []
    for each, precision, predicted, seconds in published_speed.step_pairs():
        if each["objective"].startswith(FORWARD_ALONE):
            continue
        classes = []
        if each["held_out"] == "yes":
            classes.append(HELD_OUT)
        if float(published_speed.gpu_of(each["board"]).capability) < 8:
            classes.append(OLDER)
        found.append(row(f"{each['board']}, {precision}, {each['model'].split()[0]}", predicted, seconds, *classes))
    return found


def of_guide() -> list[Row]:
    """The V100 rows of the Hugging Face guide, whose speed is that of the whole training."""
    found = []
    for line in published_table.guide_rows():
        name = published_table.experiment_of(line)
        cfg, outcome = compose.compose_valid(paths.CONF, *published_table.GUIDE_OVERRIDES, f"+experiment/guide={name}")
        with tempfile.TemporaryDirectory() as folder:
            prediction.fill(cfg, outcome, simulation.simulate_step(cfg, folder))
        speed = outcome.speed
        assert speed.step_seconds_median and speed.step_seconds_low and speed.step_seconds_high and speed.bound_by
        seconds = speed.step_seconds_median * (speed.samples_per_second or 0.0) / float(line["samples_per_second"])
        figures = speed.step_seconds_low, speed.step_seconds_high, speed.step_seconds_median, seconds
        found.append(Row(f"guide, {name}", (WAITS_FOR[speed.bound_by], OLDER, HELD_OUT), *figures))
    return found


def of_fine_tunings() -> list[Row]:
    """fms-acceleration's full fine-tunings on one GPU."""
    gpu, found = config.from_dict(gpu_specs.options()[published_table.A100], config.Gpu), []
    for each in published_table.rows("published_a100_bf16"):
        if each["num_gpus"] != "1":
            continue
        batch, length = int(each["per_device_batch"]), int(float(each["seq_len"]))
        run = published_runs.fine_tuning(each["model"], batch, length, (8, 0), gpu.memory_bytes - gpu.context_bytes)
        predicted = roofline.predict(run.tally, gpu, "bf16_pure")
        found.append(row(each["model"], predicted, batch * length / float(each["tokens_per_s_per_gpu"])))
    return found


def of_adapters() -> list[Row]:
    """fms-acceleration's LoRA and QLoRA on one GPU."""
    return [
        row(f"{each.row['model']}, {each.row['method']}", each.predicted, each.seconds, ADAPTERS)
        for each in published_adapters.compared()
    ]


@functools.cache
def rows() -> list[Row]:
    """All published steps at hand; takes some minutes."""
    return of_steps() + of_guide() + of_fine_tunings() + of_adapters()


def summary(found: list[Row]) -> dict[str, tuple[int, float, float]]:
    """class -> (rows, share inside, median width), in the order of the table; classes without rows are left out."""
    by_class = {name: [each for each in found if name in each.classes] for name in (*WAITS_FOR.values(), *OTHERS)}
    return {
        name: (
            len(chosen),
            sum(each.is_inside for each in chosen) / len(chosen),
            statistics.median(each.high / each.low for each in chosen),
        )
        for name, chosen in by_class.items()
        if chosen
    }


def table() -> str:
    """The page's part: each class, and the adapters row by row."""
    if not held_out.STEPS.exists():
        return f"## Intervals\n\nSkipped: {held_out.MISSING}."
    lines = []
    for name, (count, inside, width) in summary(rows()).items():
        chosen = [each for each in rows() if name in each.classes]
        bias = statistics.median(each.predicted / each.seconds - 1 for each in chosen)
        outside = "; ".join(
            f"{each.name} {each.predicted / each.seconds - 1:+.0%}" for each in chosen if not each.is_inside
        )
        lines.append([name, str(count), f"{inside:.0%}", f"{width:.2f}", percent(bias), outside])
    adapters = [
        [
            *(each.row[key] for key in ("model", "method", "batch", "seq_len")),
            f"{each.seconds:.2f}",
            f"{each.predicted.step_seconds:.2f}",
            percent(each.predicted.step_seconds / each.seconds - 1),
            f"{each.peak_bytes / 2**30:.2f}",
            f"{each.allocated_bytes / 2**30:.2f}",
            percent(each.allocated_bytes / each.peak_bytes - 1),
        ]
        for each in published_adapters.compared()
    ]
    headings = ["model", "method", "batch", "tokens", "published s", "predicted", "error"]
    return "\n\n".join(
        [
            "## Nine of ten: the intervals of time by class",
            markdown(HEADINGS, lines),
            "## LoRA and QLoRA on an A100 80 GB (fms-acceleration, commit 876e2ed6, scripts/benchmarks/refs)",
            markdown([*headings, "allocated GiB", "predicted", "error"], adapters),
        ]
    )
