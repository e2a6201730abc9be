"""A simulated step as the figures of a record."""

from __future__ import annotations

from dataclasses import asdict

from recipes.foresight.memory.settings import UNLIMITED
from recipes.machine import host
from recipes.options import memory_hints
from recipes.records.record import Error, Estimate, Record
from recipes.units import GIB, MIB


def allocator_bytes(cfg) -> int:
    """What is left of the device for torch's allocator, after the context."""
    gpu = host.gpu(cfg)
    if gpu is None:
        return UNLIMITED
    free = gpu.memory_bytes - cfg.gpu.context_bytes
    return free if cfg.launch.memory_limit_gib is None else min(free, int(cfg.launch.memory_limit_gib * GIB))


def fill(cfg, outcome: Record, seen) -> None:
    """Put a Forecast into a record."""
    memory = outcome.memory
    for key, value in seen.parts.items():
        setattr(memory, key, value)
    memory.parameter_count = seen.parameter_count
    outcome.warnings += notes(cfg, seen.evaluates) + seen.warnings
    if seen.demand is not None:
        _fill_device(cfg, outcome, seen)
    outcome.status = outcome.status if outcome.status == "oom" else "ok"
    memory.per_rank = [
        {"rank": 0}
        | {key: value for key, value in asdict(memory).items() if key not in ("per_rank", "all_ranks_bytes")}
    ]


def _fill_device(cfg, outcome: Record, seen) -> None:
    memory, demand, capacity = outcome.memory, seen.demand, allocator_bytes(cfg)
    memory.peak_allocated_bytes = demand.peak_allocated_bytes
    memory.peak_reserved_bytes = demand.peak_reserved_bytes
    memory.context_bytes = cfg.gpu.context_bytes
    used = memory.context_bytes + demand.peak_reserved_bytes
    memory.device_used_bytes = max(used, min(used + seen.paged_bytes, cfg.gpu.memory_bytes))
    capacity = min(capacity, demand.capacity_bytes)
    margin = -demand.missing_bytes or capacity - demand.peak_reserved_bytes
    outcome.estimate = Estimate(not demand.missing_bytes, margin, cfg.gpu.memory_bytes)
    if not cfg.parallelism.cpu_offload:  # the optimizer's step on a host whose speed nobody knows
        _fill_speed(cfg, outcome, seen)
    if demand.missing_bytes:
        outcome.status = "oom"
        needed = (
            f"{memory.device_used_bytes / MIB:,.0f} MiB are needed, and {cfg.gpu.device_name} has "
            f"{cfg.gpu.memory_bytes / MIB:,.0f}"
        )
        if capacity < cfg.gpu.memory_bytes - memory.context_bytes:
            needed = (
                f"{demand.peak_reserved_bytes / MIB:,.0f} MiB are needed beside the context, and the limit "
                f"(launch.memory_limit_gib or PYTORCH_ALLOC_CONF) is {capacity / MIB:,.0f}"
            )
        outcome.error = Error(
            memory.peak_phase,
            "PredictedOutOfMemory",
            f"it would not fit: {needed}. {demand.missing_bytes / MIB:,.0f} MiB are missing.",
            memory_hints.memory_hint(cfg, memory.peak_phase),
        )


def _fill_speed(cfg, outcome: Record, seen) -> None:
    from recipes.foresight.speed import roofline
    from recipes.machine import gpu_specs

    speed, count = outcome.speed, cfg.parallelism.num_processes
    told = roofline.predict(seen.tally, cfg.gpu, cfg.precision.name, count)
    speed.step_seconds_median = told.step_seconds
    speed.samples_per_second = seen.samples / told.step_seconds
    speed.tokens_per_second = seen.tokens / told.step_seconds
    speed.model_flops_per_step = seen.model_flops and seen.model_flops * cfg.parallelism.replicas
    peak = gpu_specs.peak_flops(cfg.gpu.device_name, cfg.precision.name)
    if peak and speed.model_flops_per_step:
        speed.mfu = speed.model_flops_per_step / told.step_seconds / (peak * count)
    outcome.estimate.efficiencies_from = told.efficiencies_from
    outcome.warnings += told.notes


def notes(cfg, evaluates: bool) -> list[str]:
    """What the figures rest on, a line each. evaluates: there are rows to evaluate on."""
    from recipes.foresight import simulation

    if host.gpu(cfg) is None:
        return []
    found = []
    if simulation.is_amd(cfg):
        found.append(
            f"{cfg.gpu.device_name}: attention's kernels, workspaces and the allocator are taken to be CUDA's on an "
            "A100; ROCm's own rules are not known to the estimate."
        )
    evaluated, trained = cfg.eval.batch * (cfg.eval.window or cfg.data.seq_len), cfg.batch.per_device * cfg.data.seq_len
    # Without gradients a pass takes less than half of one with them.
    if evaluates and cfg.eval.enabled and evaluated > 2 * trained:
        found.append(
            f"the estimate is of the training step; the evaluation's batches have {evaluated / trained:.0f} times as "
            "many tokens and may take more. Make eval.batch smaller, or leave it out with eval.enabled=false."
        )
    if cfg.gpu.context_from != "measured":
        found.append(
            f"the context of {cfg.gpu.device_name} ({cfg.gpu.context_bytes / MIB:.0f} MiB) is assumed: "
            "nobody has measured it for this table."
        )
    if cfg.parallelism.num_processes > 1:
        found.append(
            "NCCL's buffers lie outside torch's allocator and are not counted: some hundreds of MiB. Nor is it that "
            "what one stream has freed another cannot have."
        )
    if cfg.parallelism.cpu_offload:
        found.append(
            "parallelism.cpu_offload=true: the optimizer's step is the host's, whose speed and memory are not "
            "predicted."
        )
    if cfg.compile:
        found.append("compile=true: the figures are those of the step as written; compiled code takes less of both.")
    if cfg.model.attention == "flash_attention_2":
        found.append(
            "model.attention=flash_attention_2: the figures are those of torch's own flash attention, which keeps "
            "the same; padding, which the package cuts out, is counted."
        )
    return found
