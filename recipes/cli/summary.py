"""A finished job in words: a line in a sweep, a summary after a run."""

from __future__ import annotations

import os
from pathlib import Path

from recipes import units
from recipes.records.record import Record
from recipes.records.run_folder import log_name


def job_line(outcome: Record, number: int, words: list[str], before: bool) -> str:
    """A job of a sweep in one line. before: it was done by an earlier run."""
    memory = outcome.memory
    used = memory.device_used_bytes or memory.peak_tensor_bytes
    said = [
        f"{outcome.speed.samples_per_second:.1f} samples/s" if outcome.speed.samples_per_second else "",
        f"{used / units.MIB:.0f} MiB" if used else "",
        outcome.error.message.splitlines()[0] if outcome.error else "",
        "(done before)" if before else "",
    ]
    return f"{number:>3}  {outcome.status:<12}{' '.join(words)}  {'  '.join(filter(None, said))}".rstrip()


def summary(outcome: Record, folder: Path) -> str:
    """A job's end in the guide's terms: time, samples per second, memory, and where it went."""
    config, memory, speed, training = outcome.config, outcome.memory, outcome.speed, outcome.training
    batch, steps = config["batch"]["per_device"], config["accumulation"]["steps"]
    mode, replicas = config["parallelism"]["name"], config["parallelism"]["replicas"]
    devices = "" if mode == "single" else f" x {replicas} ({mode})"
    model = config["model"]["pretrained"] or config["model"]["name"]
    lines = [
        f"{outcome.status}: {model} on {config['data']['name']}, {outcome.recipe}, {config['precision']['name']}, "
        f"{config['optim']['name']}, batch {batch} x {steps}{devices} = {batch * steps * replicas}, "
        f"checkpointing {config['checkpointing']['name']}, {outcome.environment['device_name']}"
    ]

    def row(name, value, note=""):
        lines.append(f"  {name:<22}{value:>14}  {note}".rstrip())

    if speed.train_seconds is not None:
        row("Time", f"{speed.train_seconds:.2f} s", f"{training.steps} steps, {training.samples} samples")
    if speed.samples_per_second is not None:
        row(
            "Samples per second",
            f"{speed.samples_per_second:.2f}",
            f"{speed.tokens_per_second:,.0f} tokens/s; "
            + (
                f"predicted, with {outcome.estimate.efficiencies_from} efficiencies"
                if outcome.estimate
                else f"{speed.measured_steps} steps measured, {speed.warmup_steps} of warm-up left out"
            ),
        )
        row(
            "Step",
            f"{speed.step_seconds_median * 1000:.2f} ms",
            "predicted"
            if outcome.estimate
            else f"median; {speed.step_seconds_p10 * 1000:.2f} to {speed.step_seconds_p90 * 1000:.2f} for the middle 80 %",
        )
    if speed.waiting_seconds_per_rank:
        row(
            "Waiting for ranks",
            f"{max(speed.waiting_seconds_per_rank) * 1000:.2f} ms",
            "of a step, on the rank that waits most; DDP's own sample",
        )
    if speed.model_flops_per_step and speed.step_seconds_median:
        row(
            "Model FLOP/s",
            f"{speed.model_flops_per_step / speed.step_seconds_median / 1e12:.3f} T",
            f"MFU {speed.mfu:.1%}" if speed.mfu is not None else "",
        )
    if training.losses:
        row("Loss", _number(training.final_loss), f"from {_number(training.losses[0])}")
    if outcome.evaluation is not None:
        e = outcome.evaluation
        note = f"accuracy {e.accuracy:.1%}" if e.accuracy is not None else f"perplexity {_number(e.perplexity, 2)}"
        row("Evaluation loss", _number(e.loss), f"{note}, {e.samples} samples")
    if outcome.estimate is not None:
        margin, capacity = outcome.estimate.margin_bytes / units.MIB, outcome.estimate.capacity_bytes / units.MIB
        row(
            "Fits",
            "yes" if outcome.estimate.fits else "no",
            f"{abs(margin):.0f} MiB {'stay free' if margin >= 0 else 'are missing'}, of {capacity:.0f}; all predicted",
        )
    if memory.device_used_bytes is not None:
        row(
            "GPU memory occupied",
            f"{memory.device_used_bytes / units.MIB:.0f} MiB",
            f"the whole device; {memory.context_bytes / units.MIB:.0f} MiB of it the CUDA context",
        )
        row("CUDA reserved", f"{memory.peak_reserved_bytes / units.MIB:.0f} MiB", "peak")
        row("CUDA allocated", f"{memory.peak_allocated_bytes / units.MIB:.0f} MiB", "peak")
    if memory.peak_tensor_bytes is not None:
        count = memory.parameter_count
        row(
            "Tensors at the peak",
            f"{memory.peak_tensor_bytes / units.MIB:.1f} MiB",
            f"in the {memory.peak_phase} pass" if memory.peak_phase != "step" else "in the optimizer step",
        )
        for name, part in units.PARTS:
            size = getattr(memory, f"{part}_bytes")
            row(f"  {name}", f"{size / units.MIB:.1f} MiB", f"{size / count:.2f} bytes a parameter")
        most = memory.largest_bytes
        weights = most["parameters"] + most["weight_copies"]
        states = weights + most["optimizer"] + most["gradients"]
        row(
            "Model states, at most",
            f"{states / units.MIB:.1f} MiB",
            f"{states / count:.2f} bytes a parameter: weights {weights / count:.2f} + "
            f"optimizer {most['optimizer'] / count:.2f} + gradients {most['gradients'] / count:.2f}",
        )
        row(
            "Inference alone",
            f"{weights / units.MIB:.1f} MiB",
            f"{weights / count:.2f} bytes a parameter, weights only",
        )
    if len(memory.per_rank) > 1 and "peak_tensor_bytes" in memory.all_ranks_bytes:
        row(
            "All ranks together",
            f"{memory.all_ranks_bytes['peak_tensor_bytes'] / units.MIB:.1f} MiB",
            f"{len(memory.per_rank)} ranks; the figures above are of the one that takes most",
        )
    for one in outcome.estimate.largest if outcome.estimate else []:
        row(
            "  largest at the peak" if one is outcome.estimate.largest[0] else "",
            f"{one['bytes'] / units.MIB:.1f} MiB",
            f"{one['part']}, {one['made_by']}" + (f", {one['count']} of them" if one["count"] > 1 else ""),
        )
    for one in outcome.estimate.levers if outcome.estimate else []:
        row(
            "  levers, each alone" if one is outcome.estimate.levers[0] else "",
            f"{one['saved_bytes'] / units.MIB:+.0f} MiB",
            f"saved by {one['words']}"
            + (f"; {one['step_seconds'] * 1000:.0f} ms a step" if one["step_seconds"] else ""),
        )
    if memory.host_peak_rss_bytes is not None:
        row("Host memory (RSS)", f"{memory.host_peak_rss_bytes / units.MIB:.0f} MiB", "peak of the whole process")
    if outcome.error is not None:
        where = f" on rank {outcome.error.rank}" if config["parallelism"]["num_processes"] > 1 else ""
        lines.append(f"  {outcome.error.type} in {outcome.error.phase}{where}: {outcome.error.message.splitlines()[0]}")
        if outcome.error.hint:
            lines.append(f"  {outcome.error.hint}")
        if outcome.status == "failed":
            lines.append(f"  What the libraries said: {folder / log_name(outcome.error.rank)}")
    for text in outcome.warnings:
        lines.append(f"  warning: {text}")
    lines.append(f"  Record: {_short(folder / 'result.json')}")
    return "\n".join(lines)


def _number(value: float | None, digits: int = 4) -> str:
    return "not a number" if value is None or value != value else f"{value:.{digits}f}"


def _short(path: Path) -> str:
    """Relative to where the person stands, if that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)
