"""estimate.explain: a picture of the memory over the step, and the largest tensors at its peak.

A tensor is described by the module and the operation that made it. In the backward pass the module is the one whose
forward pass made the inputs of the operation, where that is known.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from legroom.estimator.ledger.kinds import ACTIVATION, COPY, GRADIENT, OPTIMIZER, OTHER, PARAMETER
from legroom.estimator.ledger.storage_log import StorageLog
from legroom.estimator.ledger.timeline import Origins, phases
from legroom.estimator.speed.anatomy import without_numbers
from legroom.units import MIB

if TYPE_CHECKING:
    from legroom.estimator.fake_gpu.op_trace import OpTrace

NAMES = ("weights", "their low-precision copies", "optimizer states", "gradients", "activations", "other")  # of ORDER
LARGEST = 10  # how many tensors are listed
ORDER = (PARAMETER, COPY, OPTIMIZER, GRADIENT, ACTIVATION, OTHER)  # of the picture's areas, from the bottom
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#BBBBBB")  # Okabe and Ito, for colour-blind readers


class Traced(Protocol):
    """A followed step: of an estimate (OpTrace), or of a script (script_check.recording.Recording)."""

    @property
    def log(self) -> StorageLog: ...

    @property
    def origins(self) -> Origins | None: ...


def largest(trace: Traced) -> list[dict[str, Any]]:
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
        origin = trace.origins[key]
        row = rows.setdefault(
            (entry.bytes, entry.kind, without_numbers(origin)),
            {"bytes": entry.bytes, "part": entry.kind, "made_by": origin, "count": 0},
        )
        row["count"] += 1
    return sorted(rows.values(), key=lambda row: -row["bytes"] * row["count"])[:LARGEST]


def picture(trace: OpTrace, path: Path, title: str, capacity_bytes: int | None) -> None:
    """Draw the memory over the last step as a PNG, one area for each part.

    capacity_bytes: what the GPU has for the allocator; None: no line.
    """
    from matplotlib.figure import Figure

    start = trace.log.step_start
    peak = trace.log.peak_index()
    live_bytes: dict[str, int] = dict.fromkeys(ORDER, 0)
    lines: list[list[float]] = []  # the MiB of each part after each event
    for entry, sign in trace.log.events:
        live_bytes[entry.kind] += sign * entry.bytes
        lines.append([live_bytes[kind] / MIB for kind in ORDER])
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    columns = list(zip(*lines[start:]))
    top = sum(lines[peak])
    axes.stackplot(range(len(lines) - start), *columns, colors=COLOURS, step="post", labels=NAMES)
    axes.annotate(f"{top:,.0f} MiB", (peak - start, top), (0, 7), textcoords="offset points", ha="center")
    if capacity_bytes is not None and capacity_bytes / MIB < 1.5 * top:
        axes.axhline(capacity_bytes / MIB, color="black", linestyle="--", linewidth=0.8, label="capacity of the GPU")
    for index, phase in phases(trace.log, start):
        axes.axvline(index, color="#767676", linewidth=0.4)
        axes.text(index, 1.11 * top, f" {phase}", fontsize=8, color="#767676")
    axes.set(xlim=(0, max(1, len(lines) - start - 1)), ylim=(0, top * 1.15), ylabel="MiB of live tensors")
    axes.set_xlabel("allocations and frees of tensors in one optimizer step, in order")
    figure.suptitle("\n".join(textwrap.wrap(title, 110)), fontsize=10)
    figure.legend(loc="outside right center", reverse=True, fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)
