"""Tables below the summary of a run: what an estimate says, the operations of a step, every figure of the record."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from legroom import units
from legroom.records.record import SHARES, Estimate, Memory, Operations, Record
from legroom.units import MIB

Row = tuple[str, str, str]  # name, value, note
PARTS = ("model", "training", "evaluation", "speed", "memory", "estimate")


def figure_lines(outcome: Record) -> list[str]:
    """The figures of the record that are single values, by their names in the record (docs/record.md)."""
    lines, count = lines_of(_device_rows(outcome.memory)), outcome.memory.parameter_count
    for part in (part for part in PARTS if getattr(outcome, part) is not None):
        for name, value in vars(getattr(outcome, part)).items():
            within = value.items() if isinstance(value, dict) else [("", value)]
            for key, figure in within:
                if text := _figure(name, figure, count if part == "memory" else None):
                    lines.append(f"  {f'{part}.{name}.{key}'.rstrip('.'):<40}{text}")
    return lines


def _figure(name: str, value: Any, parameters: int | None) -> str:
    """A figure in the unit that people read, by the unit in its name. parameters: by how many bytes are divided."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    if isinstance(value, str) or not math.isfinite(value):
        return str(value)
    if "bytes" in name:
        each = f", {value / parameters:.2f} bytes a parameter" if parameters and not name.startswith("host") else ""
        return f"{value / MIB:,.1f} MiB{each}"
    if "seconds" in name:
        return f"{value * 1000:,.2f} ms" if value < 10 else f"{value:,.1f} s"
    if name in ("mfu", *SHARES) or name.endswith("_share"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def lines_of(rows: Iterable[Row]) -> list[str]:
    return [f"  {name:<22}{value:>14}  {note}".rstrip() for name, value, note in rows]


def _device_rows(memory: Memory) -> Iterator[Row]:
    """Device memory as the guides print it: before (of an estimate: none), with the kernels loaded, with the model."""
    weights = memory.weights_device_bytes if memory.weights_device_bytes is not None else memory.weights_bytes
    if memory.device_used_bytes is None or memory.context_bytes is None or weights is None:
        return
    before = memory.device_used_at_start_bytes or 0
    kernels = before + memory.context_bytes
    yield "GPU memory before", f"{before / MIB:.0f} MiB", "by other programs"
    yield "with the kernels", f"{kernels / MIB:.0f} MiB", "the CUDA context"
    yield "with the model", f"{(kernels + weights) / MIB:.0f} MiB", "the weights beside it"


def lengths(estimate: Estimate) -> Iterator[Row]:
    """What batches of different lengths make of the reserved memory."""
    if estimate.shown_reserved_bytes is None or estimate.expandable_reserved_bytes is None:
        return
    note = f"shown after {estimate.lengths_steps} steps on uneven lengths"
    if estimate.shown_reserved_low_bytes is not None and estimate.shown_reserved_high_bytes is not None:
        low, high = estimate.shown_reserved_low_bytes, estimate.shown_reserved_high_bytes
        note += f", {units.size(low)} to {units.size(high)} by their order"
    if estimate.releases:
        note += f", cached memory given back {estimate.releases} times"
    note += f"; {units.size(estimate.expandable_reserved_bytes)} with expandable_segments"
    yield "CUDA reserved, uneven", units.size(estimate.shown_reserved_bytes), note


def evaluation(estimate: Estimate, memory: Memory) -> Iterator[Row]:
    """What an evaluation needs, where that is more than a step does."""
    if (estimate.evaluation_reserved_bytes or 0) > (memory.peak_reserved_bytes or 0):
        yield "CUDA reserved, evaluation", units.size(estimate.evaluation_reserved_bytes or 0), "peak"


def operations_of(operations: Operations) -> Iterator[Row]:
    """The groups of operations of one step, with their shares of its time and arithmetic."""
    rows = operations.groups
    seconds, flops = sum(row["seconds"] or 0 for row in rows), sum(row["flops"] for row in rows) or 1
    how = {"predicted": "predicted", "cuda": "of the kernels", "cpu": "of the calls"}.get(operations.seconds_from or "")
    by_phase = {}
    for row in rows:
        by_phase[row["phase"]] = by_phase.get(row["phase"], 0) + (row["seconds"] or 0)
    phases = ", ".join(f"{phase} {share / seconds:.0%}" for phase, share in by_phase.items()) if seconds else ""
    yield "Operations of a step", f"{seconds * 1000:.2f} ms" if seconds else "", ", ".join(filter(None, [how, phases]))
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == group]
        time, done = sum(row["seconds"] or 0 for row in own), sum(row["flops"] for row in own)
        share = f"{time / seconds:.1%} of the time, " if seconds else ""
        note = f"{share}{done / flops:.2%} of the FLOPs, {sum(row['calls'] for row in own):,} calls"
        yield f"  {group}", f"{time * 1000:.2f} ms" if seconds else "", note


def explanation(estimate: Estimate) -> Iterator[Row]:
    """What takes the memory, and what would save some (estimate.explain)."""
    for index, tensor in enumerate(estimate.largest):
        count = f", {tensor['count']} of them" if tensor["count"] > 1 else ""
        name = "" if index else "  largest at the peak"
        yield name, units.size(tensor["bytes"]), f"{tensor['part']}, {tensor['made_by']}{count}"
    for index, lever in enumerate(estimate.levers):
        name = "" if index else "  levers, each alone"
        if "refused" in lever:
            yield name, "", f"not with {lever['words']}: {lever['refused']}"
            continue
        seconds = f"; {lever['step_seconds'] * 1000:.0f} ms a step" if lever["step_seconds"] else ""
        saved = lever["saved_bytes"]
        what = "saved by" if saved > 0 else "more with" if saved < 0 else "of difference:"
        yield name, units.size(abs(saved)), f"{what} {lever['words']}{seconds}"
