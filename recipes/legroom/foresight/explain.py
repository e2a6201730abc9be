"""estimate.explain: a picture of the memory over the step, and the largest tensors at its peak.

A tensor is described by the module and the operation that made it. In the backward pass the module is the one whose
forward pass made the inputs of the operation, where that is known.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from legroom.foresight.fake_gpu.op_trace import OpTrace
from legroom.measure.memory_attribution import ACTIVATION, COPY, GRADIENT, OPTIMIZER, OTHER, PARAMETER
from legroom.measure.timeline import phases
from legroom.units import MIB

LARGEST = 10  # how many tensors are listed
ORDER = (PARAMETER, COPY, OPTIMIZER, GRADIENT, ACTIVATION, OTHER)  # of the picture's areas, from the bottom
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#BBBBBB")  # Okabe and Ito, for colour-blind readers


def largest(trace: OpTrace) -> list[dict[str, Any]]:
    """The largest storages alive at the peak of the last step, with bytes, part and made_by.

    Storages that differ only in the number of their layer are one entry, with their count.
    """
    assert trace.origins is not None, "the trace was recorded without origins"
    alive = {}
    for entry, sign in trace.log.events[: trace.log.peak_index() + 1]:
        if sign > 0:
            alive[id(entry)] = entry
        else:
            alive.pop(id(entry), None)
    rows: dict[tuple, dict] = {}
    for key, entry in alive.items():
        made_by = trace.origins[key]
        row = rows.setdefault(
            (entry.bytes, entry.kind, _without_numbers(made_by)),
            {"bytes": entry.bytes, "part": entry.kind, "made_by": made_by, "count": 0},
        )
        row["count"] += 1
    return sorted(rows.values(), key=lambda row: -row["bytes"] * row["count"])[:LARGEST]


def _without_numbers(name: str) -> str:
    """ "layers.*.mlp" for "layers.3.mlp" and "layers.4.mlp"."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def picture(trace: OpTrace, path: Path, title: str, capacity_bytes: int | None) -> None:
    """Draw the memory over the last step as a PNG, one area for each part.

    capacity_bytes: what the GPU has for the allocator; None: no line. Raises ImportError where matplotlib is missing.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    start = trace.log.step_start
    now: dict[str, int] = dict.fromkeys(ORDER, 0)
    lines: dict[str, list[float]] = {kind: [] for kind in ORDER}
    for index, (entry, sign) in enumerate(trace.log.events):
        now[entry.kind] += sign * entry.bytes
        if index >= start:
            for kind in ORDER:
                lines[kind].append(now[kind] / MIB)
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.stackplot(
        range(len(trace.log.events) - start),
        *lines.values(),
        colors=COLOURS,
        step="post",
        labels=["weights", "their low-precision copies", "optimizer states", "gradients", "activations", "other"],
    )
    peak = trace.log.peak_index() - start
    top = sum(lines[kind][peak] for kind in ORDER)
    axes.plot([peak], [top], "kv", markersize=6)
    axes.annotate(f"{top:,.0f} MiB", (peak, top), textcoords="offset points", xytext=(0, 7), ha="center")
    if capacity_bytes is not None and capacity_bytes / MIB < 1.5 * top:
        axes.axhline(capacity_bytes / MIB, color="black", linestyle="--", linewidth=0.8, label="capacity of the GPU")
    for index, phase in phases(trace.log, start):
        axes.axvline(index, color="#767676", linewidth=0.4)
        axes.annotate(
            f" {phase}", (index, 0.985), xycoords=("data", "axes fraction"), va="top", fontsize=8, color="#767676"
        )
    axes.set_xlim(0, max(1, len(trace.log.events) - start - 1))
    axes.set_ylim(0, top * 1.15)
    axes.set_xlabel("allocations and frees of tensors in one optimizer step, in order")
    axes.set_ylabel("MiB of live tensors")
    figure.suptitle("\n".join(textwrap.wrap(title, 110)), fontsize=10)
    axes.legend(
        *[part[::-1] for part in axes.get_legend_handles_labels()],
        fontsize=8,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        frameon=False,
    )
    figure.savefig(path, dpi=130)
