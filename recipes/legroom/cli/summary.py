"""Tables below the summary of a run: what an estimate says, the operations of a step, every figure of the record."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from legroom import units
from legroom.records.record import SHARES, Estimate, Memory, Operations, Record
from legroom.units import MIB

Row = tuple[str, str, str]  # name, value, note
SECONDS_FROM = {"predicted": "predicted", "cuda": "of the kernels", "cpu": "of the calls"}
PARTS = ("model", "training", "evaluation", "speed", "memory", "estimate")


def figure_lines(outcome: Record) -> list[str]:
    """The figures of the record that are single values, by their names in the record (docs/record.md)."""
    lines = lines_of(_device_rows(outcome.memory))
    for part in PARTS:
        if getattr(outcome, part) is None:
            continue
        parameters = outcome.memory.parameter_count if part == "memory" else None
        for name, value in vars(getattr(outcome, part)).items():
            figures = {f"{part}.{name}": value}
            if isinstance(value, dict):
                figures = {f"{part}.{name}.{key}": figure for key, figure in value.items()}
            for full_name, figure in figures.items():
                text = _figure(name, figure, parameters)
                if text:
                    lines.append(f"  {full_name:<40}{text}")
    return lines


def _figure(name: str, value: Any, parameters: int | None) -> str:
    """A figure in the unit that people read, by the unit in its name. parameters: by how many bytes are divided."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    if isinstance(value, str) or not math.isfinite(value):
        return str(value)
    if "bytes" in name:
        text = f"{value / MIB:,.1f} MiB"
        if parameters and not name.startswith("host"):
            text += f", {value / parameters:.2f} bytes a parameter"
        return text
    if "seconds" in name and value < 10:
        return f"{value * 1000:,.2f} ms"
    if "seconds" in name:
        return f"{value:,.1f} s"
    if name in ("mfu", *SHARES) or name.endswith("_share"):
        return f"{value:.1%}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4f}"


def lines_of(rows: Iterable[Row]) -> list[str]:
    return [f"  {name:<22}{value:>14}  {note}".rstrip() for name, value, note in rows]


def _device_rows(memory: Memory) -> Iterator[Row]:
    """Device memory as the guides print it: before (of an estimate: none), with the kernels loaded, with the model."""
    weights = memory.weights_device_bytes
    if weights is None:
        weights = memory.weights_bytes
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
    note = f"after {estimate.lengths_steps} steps on rows of different lengths"
    if estimate.shown_reserved_low_bytes is not None and estimate.shown_reserved_high_bytes is not None:
        low, high = estimate.shown_reserved_low_bytes, estimate.shown_reserved_high_bytes
        note += f", {units.size(low)} to {units.size(high)} depending on their order"
    if estimate.releases:
        note += f", cached memory given back {estimate.releases} times"
    note += f"; {units.size(estimate.expandable_reserved_bytes)} with expandable_segments"
    yield "CUDA reserved, uneven", units.size(estimate.shown_reserved_bytes), note


def evaluation(estimate: Estimate, memory: Memory) -> Iterator[Row]:
    """What an evaluation needs, where that is more than a step does."""
    if (estimate.evaluation_reserved_bytes or 0) > (memory.peak_reserved_bytes or 0):
        yield "CUDA reserved, evaluation", units.size(estimate.evaluation_reserved_bytes or 0), "peak"


def phases(memory: Memory) -> Iterator[Row]:
    """What each phase of a training needs of a GPU, and of a machine's memory for all its ranks together."""
    if not memory.phases:
        return
    known = ""
    if memory.host_memory_bytes is not None:
        known = f", which has {units.size(memory.host_memory_bytes)}"
    on_gpu = any(phase["device_bytes"] is not None for phase in memory.phases)
    yield "Phases", "GPU" if on_gpu else "", f"host: all ranks of a machine{known}"
    for phase in memory.phases:
        device = units.size(phase["device_bytes"]) if phase["device_bytes"] is not None else ""
        yield f"  {phase['phase']}", device, _host_note(phase)
    if memory.disk_bytes:
        yield "  disk", "", f"{units.size(memory.disk_bytes)} for checkpoints and the saved model"


def _host_note(phase: dict[str, Any]) -> str:
    """What a phase needs of the host, with its two largest parts."""
    parts = sorted(phase["host_parts"].items(), key=lambda part: -part[1])
    if not parts:
        return ""
    named = [f"{part} {units.size(size)}" for part, size in parts[:2]]
    return f"{units.size(phase['host_bytes'])}: {', '.join(named)}"


def operations_of(operations: Operations) -> Iterator[Row]:
    """The groups of operations of one step, with their shares of its time and arithmetic."""
    rows = operations.groups
    seconds, flops = _sums(rows)
    notes = []
    if operations.seconds_from in SECONDS_FROM:
        notes.append(SECONDS_FROM[operations.seconds_from])
    if seconds:
        for phase in dict.fromkeys(row["phase"] for row in rows):
            phase_seconds, _ = _sums([row for row in rows if row["phase"] == phase])
            notes.append(f"{phase} {phase_seconds / seconds:.0%}")
    yield "Operations of a step", _milliseconds(seconds, seconds), ", ".join(notes)
    for group in dict.fromkeys(row["group"] for row in rows):
        group_rows = [row for row in rows if row["group"] == group]
        group_seconds, group_flops = _sums(group_rows)
        calls = sum(row["calls"] for row in group_rows)
        note = f"{group_flops / (flops or 1):.2%} of the FLOPs, {calls:,} calls"
        if seconds:
            note = f"{group_seconds / seconds:.1%} of the time, {note}"
        yield f"  {group}", _milliseconds(group_seconds, seconds), note


def _sums(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """(seconds, FLOPs) of some rows of operations."""
    return sum(row["seconds"] or 0 for row in rows), sum(row["flops"] for row in rows)


def _milliseconds(seconds: float, total: float) -> str:
    """A time; nothing where no times are known, which sum to no total."""
    return f"{seconds * 1000:.2f} ms" if total else ""


def explanation(estimate: Estimate) -> Iterator[Row]:
    """What takes the memory, and what would save some (estimate.explain)."""
    for index, tensor in enumerate(estimate.largest):
        name = "  largest at the peak" if index == 0 else ""
        note = f"{tensor['part']}, {tensor['made_by']}"
        if tensor["count"] > 1:
            note += f", {tensor['count']} of them"
        yield name, units.size(tensor["bytes"]), note
    for index, lever in enumerate(estimate.levers):
        name = "  levers, each alone" if index == 0 else ""
        if "refused" in lever:
            yield name, "", f"not with {lever['words']}: {lever['refused']}"
            continue
        saved = lever["saved_bytes"]
        if saved > 0:
            note = f"saved by {lever['words']}"
        elif saved < 0:
            note = f"more with {lever['words']}"
        else:
            note = f"of difference: {lever['words']}"
        if lever["step_seconds"]:
            note += f"; {lever['step_seconds'] * 1000:.0f} ms a step"
        yield name, units.size(abs(saved)), note
