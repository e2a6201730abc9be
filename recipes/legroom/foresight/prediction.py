"""A simulated step as the figures of a record: memory, speed, whether it fits, and the assumptions behind them."""

import functools
import statistics

from legroom import units
from legroom.config import Config
from legroom.estimator import verdict
from legroom.estimator.memory import allocator
from legroom.estimator.memory.settings import UNLIMITED, limits_of
from legroom.estimator.room import context, usable_bytes
from legroom.estimator.speed import roofline
from legroom.estimator.speed.operations import Tally
from legroom.foresight import evaluation_memory, host_step, multiples, phases, whole_run
from legroom.foresight.simulation import SimulatedStep
from legroom.foresight.uneven_lengths import UnevenLengths
from legroom.machine import gpu_specs
from legroom.records.record import FITS, STEP, TIGHT, Error, Estimate, Record

LEAST_PADDING = 0.05  # the least share of padding that is named
NO_CPU_TIME = (
    "no time of a step on a CPU is predicted: train.max_steps=20 without recipe=estimate measures it, and with the "
    "folder of that run as estimate.short_run= an estimate says how long the whole training takes."
)


def allocator_bytes(cfg: Config) -> int:
    """What CUDA's context, NCCL and launch.memory_limit_gib leave of the device for torch's allocator."""
    if cfg.target.gpu is None:
        return UNLIMITED
    return usable_bytes(cfg.gpu, nccl_bytes(cfg), cfg.launch.memory_limit_gib)


def nccl_bytes(cfg: Config) -> int:
    """What NCCL takes on each of several GPUs, outside torch's allocator."""
    return cfg.gpu.nccl_bytes if cfg.parallelism.world_size > 1 else 0


def fill(cfg: Config, outcome: Record, simulated: SimulatedStep) -> None:
    """Enter a simulated step into a record. Its status becomes `oom` if the step does not fit, else `ok`."""
    memory = outcome.memory
    for key, value in simulated.parts.items():
        setattr(memory, key, value)
    memory.parameter_count = simulated.parameter_count
    outcome.model = simulated.model
    outcome.warnings += notes(cfg) + simulated.warnings + simulated.unknown_settings
    if simulated.demand is not None:
        _fill_device(cfg, outcome, simulated, simulated.demand)
        if simulated.evaluation is not None:
            needs = functools.partial(_demand_within, cfg, simulated.evaluation.events)
            settings = limits_of(allocator_bytes(cfg), cfg.gpu.memory_bytes).settings
            alone = functools.partial(simulated.evaluation.needed_alone, settings)
            evaluation_memory.judge(cfg, outcome, allocator_bytes(cfg), needs, alone)
    else:
        if simulated.schedule is not None:
            whole_run.fill_measured(cfg, outcome, simulated.schedule)
        if cfg.estimate.short_run is None:
            outcome.warnings.append(NO_CPU_TIME)
    if simulated.kept is not None:
        outside = 0
        if cfg.target.gpu is not None:
            outside = context(cfg.gpu)[0] + nccl_bytes(cfg)
        phases.enter(cfg, outcome, simulated.kept, outside)
    if outcome.status != "oom":
        outcome.status = "ok"
    memory.per_rank = [memory.of_rank(simulated.rank)]


def _demand_within(cfg: Config, events: list[allocator.Request], capacity_bytes: int) -> allocator.Demand:
    limits = limits_of(capacity_bytes, cfg.gpu.memory_bytes)
    return allocator.replay(events, limits.capacity_bytes, limits.settings)


def _fill_device(cfg: Config, outcome: Record, simulated: SimulatedStep, demand: allocator.Demand) -> None:
    """The figures of CUDA's allocator and of the whole device, and whether they fit."""
    memory, capacity = outcome.memory, min(allocator_bytes(cfg), demand.capacity_bytes)
    memory.peak_allocated_bytes = demand.peak_allocated_bytes
    memory.peak_reserved_bytes = demand.peak_reserved_bytes
    memory.context_bytes = context(cfg.gpu)[0]
    memory.nccl_bytes = nccl_bytes(cfg) or None
    used = memory.context_bytes + nccl_bytes(cfg) + demand.peak_reserved_bytes
    # Paged optimizer states fill what is free of the device; the rest of them stays on the host.
    memory.device_used_bytes = max(used, min(used + simulated.paged_bytes, cfg.gpu.memory_bytes))
    margin = -demand.missing_bytes or capacity - demand.peak_reserved_bytes
    lacking = simulated.drawn.lacking_bytes if simulated.drawn is not None else 0
    share = max(cfg.estimate.margin or 0.0, simulated.error_share)
    judged = verdict.judge(margin, demand.peak_reserved_bytes, share, lacking)
    outcome.estimate = Estimate(
        judged.fits, margin, cfg.gpu.memory_bytes, judged.word, judged.kept_bytes, decided_by=STEP
    )
    limit = capacity + memory.context_bytes + nccl_bytes(cfg)
    outcome.estimate.limit_bytes = limit if limit < cfg.gpu.memory_bytes else None
    if simulated.lengths is not None and not demand.missing_bytes:  # else the longest alone do not fit
        _fill_lengths(cfg, outcome, outcome.estimate, simulated.lengths)
    if 0 <= margin < (outcome.estimate.kept_bytes or 0):
        outcome.warnings.append(_why_tight(cfg, share, outcome.estimate, demand.releases))
    _fill_speed(cfg, outcome, simulated, outcome.estimate)
    if demand.missing_bytes:
        outcome.status = "oom"
        needed = (
            f"{units.size(memory.device_used_bytes)} are needed, and {cfg.gpu.device_name} has "
            f"{units.size(cfg.gpu.memory_bytes)}"
        )
        if outcome.estimate.limit_bytes is not None:
            needed = (
                f"{units.size(demand.peak_reserved_bytes)} are needed beside the context, and the limit "
                f"(launch.memory_limit_gib, gpu.used_gib or PYTORCH_ALLOC_CONF) is {units.size(capacity)}"
            )
        message = f"it would not fit: {needed}. {units.size(demand.missing_bytes)} are missing."
        if cfg.compile:
            message += " That is of the step as written, without compile=true."
        outcome.error = Error(memory.peak_phase or "step", "PredictedOutOfMemory", message)


def _fill_lengths(cfg: Config, outcome: Record, estimate: Estimate, lengths: UnevenLengths) -> None:
    """What batches of different lengths make of the reserved memory; a step that would not fit then is tight."""
    demands = lengths.demands
    estimate.lengths_steps = lengths.drawn.steps
    estimate.releases = max(demand.releases for demand in demands)
    estimate.lacking_bytes = lengths.drawn.lacking_bytes
    needed = outcome.memory.peak_reserved_bytes or 0  # every order has the longest rows sooner or later
    shown = [max(needed, min(demand.peak_reserved_bytes, demand.capacity_bytes)) for demand in demands]
    estimate.shown_reserved_bytes = statistics.median_low(shown)
    estimate.shown_reserved_low_bytes = min(shown)
    estimate.shown_reserved_high_bytes = max(shown)
    estimate.free_reserved_bytes = max(needed, *(demand.peak_reserved_bytes for demand in lengths.drawn.free_demands))
    estimate.expandable_reserved_bytes = lengths.expandable_demand.peak_reserved_bytes
    estimate.padding_share = lengths.drawn.padding
    sentences = []
    missing = max(demand.missing_bytes for demand in demands)
    if missing and estimate.verdict == FITS:
        estimate.fits = False
        estimate.verdict = TIGHT
        sentences.append(f"{units.size(missing)} would be missing in the worst order of the batches: tight.")
    if estimate.lacking_bytes and estimate.kept_bytes:
        sentences.append(
            f"On a GPU with just what the longest need, {units.size(estimate.lacking_bytes)} would be missing in "
            "the worst order: they are part of the margin."
        )
    saved = estimate.shown_reserved_high_bytes - estimate.expandable_reserved_bytes
    hints = []
    if saved > 0:
        hints.append(f"expandable_segments (PYTORCH_ALLOC_CONF) would save up to {units.size(saved)} of it")
    if lengths.drawn.padding >= LEAST_PADDING and not cfg.data.packing:
        grouped = "" if cfg.data.group_by_length is True else " or data.group_by_length"
        hints.append(
            f"{lengths.drawn.padding:.0%} of the positions are padding, which data.packing (language modelling)"
            f"{grouped} would spare"
        )
    if hints:
        sentences.append(f"{'; '.join(hints)}.")
    given_back = "is never given back"
    if estimate.releases:
        given_back = f"is given back up to {units.plural(estimate.releases, 'time')}"
    first = (
        f"batches of different lengths {_growth(needed, shown)}; in {lengths.drawn.steps} steps cached memory "
        f"{given_back} to make room."
    )
    outcome.warnings.append(" ".join([first, *sentences]))


def _growth(needed: int, shown: list[int]) -> str:
    """What batches of different lengths make of the reserved bytes that the longest need. shown: of each order."""
    if max(shown) == needed:
        return f"do not fragment the cache here: it stays at the {units.size(needed)} that the longest need"
    least, most = units.size(min(shown)), units.size(max(shown))
    spread = f"{most} reserved, whatever"
    if least != most:
        spread = f"{least} to {most} reserved, by"
    return (
        f"fragment the cache: {units.size(needed)} are needed for the longest, and the device will show "
        f"{spread} the order of the batches ({len(shown)} were tried)"
    )


def _why_tight(cfg: Config, share: float, estimate: Estimate, releases: int) -> str:
    """Why a step that is predicted to run is not said to fit. share: of the reserved memory, that is to stay free."""
    reasons = f"{share:.3g} of the reserved memory, estimate.margin"
    if share > (cfg.estimate.margin or 0.0):
        reasons = f"{share:.3g} of the reserved memory, as compiled"
    if estimate.lacking_bytes:
        reasons += f", and {units.size(estimate.lacking_bytes)} for batches of different lengths"
    text = (
        f"tight: {units.size(estimate.margin_bytes)} stay free, and what is predicted may be too little by "
        f"{units.size(estimate.kept_bytes or 0)} ({reasons}). It may run out of memory."
    )
    if releases:
        text += f" Cached memory is given back {units.plural(releases, 'time')} to make room, which takes time."
    return text


def _fill_speed(cfg: Config, outcome: Record, simulated: SimulatedStep, estimate: Estimate) -> None:
    """The predicted times of a step, and the speeds that follow from them."""
    speed = outcome.speed
    ranks = cfg.parallelism.world_size
    reserved = outcome.memory.peak_reserved_bytes or 0
    without_room = max(0, reserved + simulated.paged_bytes - allocator_bytes(cfg))
    paging = roofline.Paging(simulated.paged_bytes, min(without_room, simulated.paged_bytes))
    model = roofline.predict_compiled if cfg.compile else roofline.predict

    def predict(tally: Tally) -> roofline.Prediction:
        beside_frozen = simulated.beside_frozen
        return model(tally, cfg.gpu, cfg.precision.timed_as, ranks, paging=paging, beside_frozen=beside_frozen)

    def of_step(tally: Tally) -> roofline.Prediction:
        if cfg.parallelism.steps_on_host:
            return host_step.predicted(cfg, tally, predict)
        return predict(tally)

    predicted = of_step(simulated.tally)
    _enter_times(cfg, outcome, simulated, predicted)
    steps = [predicted]
    if simulated.first_steps is not None:
        first = simulated.first_steps
        steps += [of_step(tally) for tally in first.tallies]
        seconds = [each.step_seconds for each in steps[1:]]
        estimate.first_step_seconds = statistics.fmean(seconds)
        estimate.unpadded_tokens_per_second = first.unpadded_tokens / sum(seconds)
    if simulated.schedule is not None:
        evaluation = None
        if simulated.evaluation is not None:
            evaluated = model(simulated.evaluation.tally, cfg.gpu, cfg.precision.timed_as, ranks)
            evaluation = simulated.evaluation.work, evaluated
        whole_run.fill(cfg, outcome, simulated.schedule, steps, evaluation)
    peak = gpu_specs.peak_flops(cfg.gpu.device_name, cfg.precision.kind)
    if peak and speed.model_flops_per_step:
        speed.mfu = speed.model_flops_per_step / predicted.step_seconds / (peak * ranks)
    estimate.efficiencies_from = predicted.efficiencies_from
    outcome.warnings += predicted.notes + multiples.notes(cfg, simulated.tally)


def _enter_times(cfg: Config, outcome: Record, simulated: SimulatedStep, predicted: roofline.Prediction) -> None:
    speed = outcome.speed
    speed.step_seconds_median = predicted.step_seconds
    speed.step_seconds_low = predicted.low_seconds
    speed.step_seconds_high = predicted.high_seconds
    speed.bound_by = predicted.bound_by
    speed.samples_per_second = simulated.samples / predicted.step_seconds
    speed.tokens_per_second = simulated.tokens / predicted.step_seconds
    if simulated.model_flops is not None:
        ranks = max(cfg.parallelism.replicas, cfg.parallelism.world_size)
        speed.model_flops_per_step = simulated.model_flops * ranks


def notes(cfg: Config) -> list[str]:
    """The assumptions behind the figures, a line each."""
    if cfg.target.gpu is None:
        return []
    lines = []
    if cfg.gpu.is_amd:
        lines.append(
            f"{cfg.gpu.device_name}: attention's kernels, workspaces and the allocator are assumed to be CUDA's on an "
            "A100; ROCm's own rules are not known to the estimate."
        )
    context_bytes, is_measured = context(cfg.gpu)
    if not is_measured:
        lines.append(
            f"the context of {cfg.gpu.device_name} ({units.size(context_bytes)}) is assumed: it was not measured."
        )
    if cfg.parallelism.world_size > 1:
        source = {"measured": "measured", "published": "published for two A100"}.get(cfg.gpu.nccl_from, "assumed")
        buffers = f"NCCL's buffers on each GPU are counted as {units.size(nccl_bytes(cfg))} ({source}; gpu.nccl_bytes)"
        if (cfg.gpu.machines or 1) > 1:
            buffers += "; what it takes for the network between machines is not known"
        lines.append(f"{buffers}.")
    if cfg.model.flash_attention:
        lines.append(
            f"model.attention={cfg.model.attention}: the figures are those of torch's own copy of its kernels, which "
            "saves the same tensors; padding, which the package removes, is counted, and 3 is taken to be as fast as 2."
        )
    return lines
