"""A finished run as text: the table after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from legroom.cli import ending
from legroom.options.model import AUTO
from legroom.records.record import Estimate, Memory, Operations, Record, Speed, shown_status, verdict_of
from legroom.records.run_folder import PAGE_FILES
from legroom.report import predicted
from legroom.units import MIB, PARTS

Row = tuple[str, str, str]  # name, value, note
FLOP_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def summary(outcome: Record, folder: Path, answered: bool = False) -> str:
    """What a run came to: time, samples per second, loss, memory and where it went. folder: the run's.

    answered: `answer` has been printed, and the rest follows.
    """
    lines = [] if answered else [answer(outcome)]
    lines += explanation_lines(outcome)
    lines += ending.advice_lines(outcome, folder)
    lines += ending.data_wait_lines(outcome)
    lines += [f"  warning: {text}" for text in outcome.warnings]
    lines += ending.generated_lines(outcome)
    page = f"   Page: {PAGE_FILES[0]}" if (folder / PAGE_FILES[0]).is_file() else ""
    lines.append(f"  Record: {ending.shorter(folder / 'result.json')}{page}")
    return "\n".join(lines + ending.model_lines(outcome, folder))


def explanation_lines(outcome: Record) -> list[str]:
    """What takes the memory of an estimate, and what would save some (estimate.explain)."""
    return _lines(_explanation_rows(outcome.estimate)) if outcome.estimate is not None else []


def operation_lines(operations: Operations) -> list[str]:
    """The groups of operations of one step."""
    return _lines(_operation_rows(operations))


def estimate_lines(estimate: Estimate, memory: Memory) -> list[str]:
    """What an estimate says of more than one step on the longest rows."""
    return _lines([*_lengths_rows(estimate), *_evaluation_row(estimate, memory)])


def answer(outcome: Record) -> str:
    """The status, the figures, and what went wrong."""
    return "\n".join([_headline(outcome), *_lines(_rows(outcome)), *ending.error_lines(outcome)])


def _lines(rows: Iterable[Row]) -> list[str]:
    return [f"  {name:<22}{value:>14}  {note}".rstrip() for name, value, note in rows]


def _headline(outcome: Record) -> str:
    """The status and the configuration."""
    config = outcome.config
    batch, steps = config["batch"]["per_device"], config["accumulation"]["steps"]
    mode, replicas = config["parallelism"]["name"], config["parallelism"]["replicas"] or 1
    devices = "" if mode == "single" else f" x {replicas} ({mode})"
    model = config["model"]["pretrained"] or config["model"]["name"]
    attention = f", attention {outcome.model.attention}" if outcome.model and outcome.model.attention else ""
    if attention and config["model"]["attention"] == AUTO:
        attention += " (auto)"
    return (
        f"{shown_status(outcome)}: {model} on {config['data']['name']}, {outcome.recipe}, "
        f"{config['precision']['name']}, {config['optim']['name']}, "
        f"batch {batch} x {steps}{devices} = {batch * steps * replicas}, "
        f"checkpointing {config['checkpointing']['name']}{attention}, {outcome.environment['device_name']}"
    )


def _rows(outcome: Record) -> Iterator[Row]:
    yield from _speed_rows(outcome)
    yield from _result_rows(outcome)
    yield from _device_rows(outcome.memory)
    if outcome.estimate is not None:
        yield from _lengths_rows(outcome.estimate)
        yield from _evaluation_row(outcome.estimate, outcome.memory)
    yield from _tensor_rows(outcome.memory)
    if outcome.model is not None and outcome.config.get("adapter", {}).get("name") not in (None, "none"):
        trained, count = outcome.model.trained_parameters or 0, outcome.memory.parameter_count or 1
        yield "Trained parameters", f"{trained:,}", f"{trained / count:.2%} of {count:,}"
    if outcome.operations is not None:
        yield from _operation_rows(outcome.operations)
    if outcome.memory.host_peak_rss_bytes is not None:
        yield "Host memory (RSS)", f"{outcome.memory.host_peak_rss_bytes / MIB:.0f} MiB", "peak of the whole process"


def _speed_rows(outcome: Record) -> Iterator[Row]:
    speed, training = outcome.speed, outcome.training
    if speed.train_seconds is not None:
        note = f"{training.steps} steps, {training.samples} samples"
        note += f", {training.padding_share:.0%} of the tokens padding" if training.padding_share else ""
        if training.resumed_from_step:
            since = training.steps - training.resumed_from_step
            note = f"{since} steps since the resume at step {training.resumed_from_step}; {note} in all"
        yield "Time", f"{speed.train_seconds:.2f} s", note
    if speed.samples_per_second is not None:
        yield from _throughput_rows(speed, outcome.estimate)
    if speed.waiting_seconds_per_rank:
        longest = f"{max(speed.waiting_seconds_per_rank) * 1000:.2f} ms"
        yield "Waiting for ranks", longest, "of a step, on the rank that waits most; sampled by DDP"
    if speed.data_wait_share is not None:
        yield "Waiting for data", f"{speed.data_wait_share:.1%}", "of a step, on the host; of the rank that waits most"
    if speed.model_flops_per_step and speed.step_seconds_median:
        rate = speed.model_flops_per_step / speed.step_seconds_median
        unit, letter = next((pair for pair in FLOP_UNITS if rate >= 0.1 * pair[0]), FLOP_UNITS[-1])
        yield "Model FLOP/s", f"{rate / unit:.3f} {letter}", f"MFU {speed.mfu:.1%}" if speed.mfu is not None else ""
    yield from _machine_rows(outcome.config)
    cost = predicted.cost_of_million_tokens(outcome)
    if cost is not None:
        yield "Cost", predicted.two_digits(cost), "of a million tokens, in the currency of gpu.price_per_hour"


def _machine_rows(values: dict) -> Iterator[Row]:
    """The machines of an estimate for several, from its configuration."""
    gpu, ranks = values.get("gpu") or {}, (values.get("parallelism") or {}).get("num_processes") or 1
    machines = gpu.get("machines") or 1
    if machines > 1:
        network = f"the network of each carries {gpu['machine_link_gb_per_second']:g} GB/s in each direction"
        yield "Machines", f"{machines}", f"of {ranks // machines} GPU{'s' * (ranks > machines)}; {network}"


def _throughput_rows(speed: Speed, estimate: Estimate | None) -> Iterator[Row]:
    digits, samples, tokens = predicted.two_digits, speed.samples_per_second or 0.0, speed.tokens_per_second or 0.0
    if speed.bound_by is not None:
        known_from = estimate.efficiencies_from if estimate is not None else "measured here"  # a CPU's always are
        rounded = f"{float(digits(tokens)):,.0f}"
        yield "Samples per second", digits(samples), f"{rounded} tokens/s; predicted, efficiencies {known_from}"
        yield "Step", f"{digits((speed.step_seconds_median or 0.0) * 1000)} ms", _predicted_note(speed)
        if estimate is not None and estimate.unpadded_tokens_per_second and estimate.first_step_seconds:
            rounded = f"{float(digits(estimate.unpadded_tokens_per_second)):,.0f}"
            note = f"without padding, over the first steps, of {digits(estimate.first_step_seconds * 1000)} ms each"
            yield "Tokens per second", rounded, note
        return
    how = f"{speed.measured_steps} steps measured, {speed.warmup_steps} of warm-up left out"
    yield "Samples per second", f"{samples:.2f}", f"{tokens:,.0f} tokens/s; {how}"
    if speed.step_seconds_median is not None:
        steps = "median"
        if speed.step_seconds_p10 is not None and speed.step_seconds_p90 is not None:
            shortest, longest = speed.step_seconds_p10 * 1000, speed.step_seconds_p90 * 1000
            steps = f"median; {shortest:.2f} to {longest:.2f} for the middle 80 %"
        yield "Step", f"{speed.step_seconds_median * 1000:.2f} ms", steps


def _predicted_note(speed: Speed) -> str:
    """What a predicted step waits for, and the interval around it, with the two digits that are known."""
    low, high = speed.step_seconds_low, speed.step_seconds_high
    if low is None or high is None:
        return "predicted"
    interval = f"{predicted.two_digits(low * 1000)} to {predicted.two_digits(high * 1000)} ms"
    return f"predicted, bound by {speed.bound_by}; likely range {interval} (nine of ten published steps)"


def _result_rows(outcome: Record) -> Iterator[Row]:
    training, evaluation, estimate = outcome.training, outcome.evaluation, outcome.estimate
    if training.losses:
        yield "Loss", ending.number(training.final_loss), f"from {ending.number(training.losses[0])}"
    if evaluation is not None:
        quality = f"perplexity {ending.number(evaluation.perplexity, 2)}"
        if evaluation.accuracy is not None:
            quality = f"accuracy {evaluation.accuracy:.1%}"
        bounded = (evaluation.available_samples or 0) > evaluation.samples
        samples = f"{evaluation.samples}{f' of {evaluation.available_samples}' if bounded else ''} samples"
        yield "Evaluation loss", ending.number(evaluation.loss), f"{quality}, {samples}"
    if estimate is not None:
        margin, capacity = estimate.margin_bytes / MIB, estimate.capacity_bytes / MIB
        limit = "" if estimate.limit_bytes is None else f"a limit of {estimate.limit_bytes / MIB:.0f} on "
        left = "stay free" if margin >= 0 else "are missing"
        kept = f"; 'fits' keeps {estimate.kept_bytes / MIB:.0f} free" if estimate.kept_bytes is not None else ""
        note = f"{abs(margin):.0f} MiB {left}, of {limit}{capacity:.0f}{kept}; all predicted"
        yield "Verdict", verdict_of(estimate), note


def _device_rows(memory: Memory) -> Iterator[Row]:
    if memory.device_used_bytes is None:
        return
    context = "the whole device"
    if memory.context_bytes is not None:
        context += f"; {memory.context_bytes / MIB:.0f} MiB of it the CUDA context"
    if memory.nccl_bytes is not None:
        context += f", {memory.nccl_bytes / MIB:.0f} MiB NCCL"
    yield "GPU memory occupied", f"{memory.device_used_bytes / MIB:.0f} MiB", context
    for name, size_bytes in (("reserved", memory.peak_reserved_bytes), ("allocated", memory.peak_allocated_bytes)):
        if size_bytes is not None:
            yield f"CUDA {name}", f"{size_bytes / MIB:.0f} MiB", "peak"


def _lengths_rows(estimate: Estimate) -> Iterator[Row]:
    """What batches of different lengths make of the reserved memory."""
    if estimate.shown_reserved_bytes is None or estimate.expandable_reserved_bytes is None:
        return
    note = f"shown after {estimate.lengths_steps} steps on uneven lengths"
    if estimate.shown_reserved_low_bytes is not None and estimate.shown_reserved_high_bytes is not None:
        low, high = estimate.shown_reserved_low_bytes, estimate.shown_reserved_high_bytes
        note += f", {low / MIB:.0f} to {high / MIB:.0f} by their order"
    if estimate.releases:
        note += f", cached memory given back {estimate.releases} times"
    note += f"; {estimate.expandable_reserved_bytes / MIB:.0f} MiB with expandable_segments"
    yield "CUDA reserved, uneven", f"{estimate.shown_reserved_bytes / MIB:.0f} MiB", note


def _evaluation_row(estimate: Estimate, memory: Memory) -> Iterator[Row]:
    """What an evaluation needs, where that is more than a step does."""
    if (estimate.evaluation_reserved_bytes or 0) > (memory.peak_reserved_bytes or 0):
        yield "CUDA reserved, evaluation", f"{(estimate.evaluation_reserved_bytes or 0) / MIB:.0f} MiB", "peak"


def _tensor_rows(memory: Memory) -> Iterator[Row]:
    count = memory.parameter_count
    if memory.peak_tensor_bytes is not None and count:
        when = "in the optimizer step" if memory.peak_phase == "step" else f"in the {memory.peak_phase} pass"
        yield "Tensors at the peak", f"{memory.peak_tensor_bytes / MIB:.1f} MiB", when
        for name, part in PARTS:
            size = getattr(memory, f"{part}_bytes")
            yield f"  {name}", f"{size / MIB:.1f} MiB", f"{size / count:.2f} bytes a parameter"
        most = memory.largest_bytes
        if not {"parameters", "weight_copies", "optimizer", "gradients"} <= most.keys():
            return
        weights = most["parameters"] + most["weight_copies"]
        states = weights + most["optimizer"] + most["gradients"]
        parts = (
            f"{states / count:.2f} bytes a parameter: weights {weights / count:.2f} + "
            f"optimizer {most['optimizer'] / count:.2f} + gradients {most['gradients'] / count:.2f}"
        )
        yield "Model states, at most", f"{states / MIB:.1f} MiB", parts
        yield "Inference alone", f"{weights / MIB:.1f} MiB", f"{weights / count:.2f} bytes a parameter, weights only"
    if len(memory.per_rank) > 1 and "peak_tensor_bytes" in memory.all_ranks_bytes:
        total = f"{memory.all_ranks_bytes['peak_tensor_bytes'] / MIB:.1f} MiB"
        note = f"{len(memory.per_rank)} ranks; the figures above are of the one that takes most"
        yield "All ranks together", total, note


def _operation_rows(operations: Operations) -> Iterator[Row]:
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


def _explanation_rows(estimate: Estimate) -> Iterator[Row]:
    """What takes the memory, and what would save some (estimate.explain)."""
    for index, tensor in enumerate(estimate.largest):
        count = f", {tensor['count']} of them" if tensor["count"] > 1 else ""
        name = "" if index else "  largest at the peak"
        yield name, f"{tensor['bytes'] / MIB:.1f} MiB", f"{tensor['part']}, {tensor['made_by']}{count}"
    for index, lever in enumerate(estimate.levers):
        name = "" if index else "  levers, each alone"
        if "refused" in lever:
            yield name, "", f"not with {lever['words']}: {lever['refused']}"
            continue
        seconds = f"; {lever['step_seconds'] * 1000:.0f} ms a step" if lever["step_seconds"] else ""
        saved = lever["saved_bytes"]
        what = "saved by" if saved > 0 else "more with" if saved < 0 else "of difference:"
        yield name, f"{abs(saved) / MIB:.0f} MiB", f"{what} {lever['words']}{seconds}"
