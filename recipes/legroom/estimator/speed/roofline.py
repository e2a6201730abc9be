"""The seconds of a step by a roofline model, from its operations and the figures of a GPU.

Each operation takes the longer of its arithmetic and its memory traffic, at the fraction of the GPU's peaks that its
class of operations reaches (efficiencies.yaml). The link transfers gradients and gathered weights while the device
computes the same pass, so a pass takes the longer of the two, plus the transfer that nothing can overlap; and the host
issues calls ahead of the device, so a step takes at least its time. What is computed during a transfer has fewer
multiprocessors. Several ranks are as fast as the slowest of their GPUs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

from legroom.config import Gpu
from legroom.estimator.speed import efficiencies, intervals, links
from legroom.estimator.speed import operation_names as ops
from legroom.estimator.speed.efficiencies import Efficiencies
from legroom.estimator.speed.links import Transfers
from legroom.estimator.speed.operations import OPTIMIZER_PHASE, Operation, Tally
from legroom.estimator.speed.products import joined, product_flops

# Rows that a multiprocessor works on at once, by the threads of a row's block: torch's softmax has up to 1024 of the
# 2048, its layer norm 128.
ROWS_PER_SM = {"reduction": 4, "normalisation": 16}
AUTOCAST = ("fp16", "bf16")  # options of `precision` whose casts the host issues, too
ERROR_OF = {"bf16_pure": "bf16"}  # option of `precision` -> the dtype of its products, where the names differ
LEAST_COPIES = 1e-3  # seconds of them that a note names
SPILL = 4  # how sharply rows stop fitting into the cache (fitted)
ELEMENT_SHARPNESS = 4  # how well the traffic of a kernel and the work on its elements overlap (assumed)
# Multiprocessors of these generations have 64 lanes for fp32, the others 128: CUDA C++ programming guide, arithmetic
# instructions. By a capability, "6.0", or its major part.
HALF_LANES = ("6.0", "7", "8.0")
FUSED = "speed: the least time is that of a compiled step whose element-wise operations, sums and copies take none."


@dataclass
class Prediction:
    """The predicted seconds of a step, and their parts.

    low_seconds, high_seconds: nine of ten steps lie between them (`intervals`).
    device_seconds and link_seconds overlap within each pass, and host_seconds with both (`overlapped`). by_kind: the
    seconds of the device by class of operations, with the collectives that it waits for; device_seconds also has those
    in which the slowest of several GPUs keeps the others waiting. arithmetic_seconds: of the device, in operations that
    arithmetic limits.
    host_link_seconds: of the device, in copies to and from the host, which the kernels behind them wait for.
    machine_link_seconds: of the link, in collectives that the network between machines limits.
    taken_seconds: of the device, by the multiprocessors that collectives run on (`links.Transfers`).
    notes: assumptions to know before relying on the prediction. collectives: their number.
    """

    step_seconds: float
    low_seconds: float
    high_seconds: float
    device_seconds: float
    host_seconds: float
    link_seconds: float
    arithmetic_seconds: float
    by_kind: dict[str, float]
    efficiencies_from: str
    notes: list[str] = field(default_factory=list)
    collectives: int = 0
    host_link_seconds: float = 0.0
    machine_link_seconds: float = 0.0
    taken_seconds: float = 0.0

    @property
    def bound_by(self) -> str:
        """What the step waits for: host, link, machine link, host link, arithmetic or memory."""
        longest = max(self.device_seconds, self.host_seconds, self.link_seconds)
        if longest == self.device_seconds:
            if 2 * self.by_kind.get(ops.COLLECTIVE, 0.0) > self.device_seconds:
                return links.BY_LINK
            if 2 * self.host_link_seconds > self.device_seconds:
                return "host link"
            return "arithmetic" if 2 * self.arithmetic_seconds > self.device_seconds else "memory"
        if longest == self.host_seconds:
            return "host"
        return links.BY_MACHINE_LINK if 2 * self.machine_link_seconds > self.link_seconds else links.BY_LINK


@dataclass(frozen=True)
class Phase:
    """The seconds of a pass, or of the optimizer's step, on the device and on the link, and the collectives in it.

    taken_seconds: see `Prediction`.
    """

    device_seconds: float
    link_seconds: float = 0.0
    taken_seconds: float = 0.0
    collectives: float = 0.0

    @property
    def seconds(self) -> float:
        """Of device and link together, which work at the same time.

        One collective, the first or the last, overlaps with nothing; it takes an equal share of link_seconds. The
        others take taken_seconds from the device, as far as they run while it computes.
        """
        exposed = self.link_seconds / self.collectives if self.collectives else 0.0
        hidden = self.link_seconds - exposed
        device_seconds = self.device_seconds
        if hidden > 0:
            device_seconds += self.taken_seconds * min(hidden, device_seconds) / self.link_seconds
        return max(device_seconds, hidden) + exposed


@dataclass(frozen=True)
class Paging:
    """Optimizer states that the driver pages: all of them, and what of them finds no room on the device."""

    bytes: int = 0
    homeless_bytes: int = 0


def predict(
    tally: Tally,
    gpu: Gpu,
    precision: str,
    num_processes: int = 1,
    reached: Efficiencies | None = None,
    paging: Paging = Paging(),
    beside_frozen: bool = False,
) -> Prediction:
    """The seconds of the step whose operations a tally holds.

    gpu: resolved. precision: the option's name; tf32 runs fp32 matrix products on the tensor cores. num_processes:
    ranks of all machines. reached: instead of the chip's efficiencies. paging: where states find no room, all of them
    go to the device and back in each step, as the driver gives up the page that was used longest ago; at best only
    those without room do. beside_frozen: most weights are not trained.
    Raises ValueError where the GPU lacks a dtype that the step computes in.
    """
    reached = reached or efficiencies.of_gpu(gpu)
    error = reached.error[ERROR_OF.get(precision, precision)]
    kernels = _kernels(tally, gpu, precision, reached)
    waited = links.transfers(tally, gpu, num_processes, reached, awaited=True)
    interval = intervals.device(gpu, reached, error, beside_frozen)
    device = _device(kernels, waited, gpu, num_processes, reached, paging, interval, error)
    host = _host_seconds(tally, gpu, precision, reached)
    fastest, slowest = intervals.host(gpu, reached, error)
    sent = links.transfers(tally, gpu, num_processes, reached)
    longer = 1.0  # by the time in which the ranks of a pipeline wait for each other
    if device.seconds:
        longer += tally.idle * kernels.passes_seconds / device.seconds
    sent_in = {
        phase: links.transfers(replace(tally, counts={phase: counts}), gpu, num_processes, reached)
        for phase, counts in tally.counts.items()
    }

    def whole(device_seconds: float, host_seconds: float, link_seconds: Callable[[Transfers], float]) -> float:
        phases = [
            Phase(kernels.shares[phase] * device_seconds, link_seconds(own), own.taken_seconds, own.collectives)
            for phase, own in sent_in.items()
        ]
        return longer * overlapped(phases, host_seconds)

    step_seconds = whole(device.seconds, host, lambda own: own.seconds)
    low_seconds = whole(device.low_seconds, host * fastest, lambda own: own.low_seconds(error))
    high_seconds = whole(device.high_seconds, host * slowest, lambda own: own.high_seconds(error))
    if tally.shares_experts:
        high_seconds = max(high_seconds, step_seconds * intervals.SHARED_EXPERTS)
    return Prediction(
        step_seconds=step_seconds,
        low_seconds=low_seconds,
        high_seconds=high_seconds,
        device_seconds=device.seconds,
        host_seconds=host,
        link_seconds=sent.seconds,
        arithmetic_seconds=kernels.arithmetic_seconds,
        by_kind=device.by_kind,
        efficiencies_from=reached.source,
        notes=[
            *_notes(tally, gpu, reached),
            *links.notes(sent, gpu, num_processes),
            *_copies_note(device.copying_seconds, gpu),
        ],
        collectives=sent.collectives,
        host_link_seconds=device.copying_seconds,
        machine_link_seconds=sent.machine_seconds,
        taken_seconds=sent.taken_seconds,
    )


@dataclass(frozen=True)
class _Kernels:
    """Seconds of the device: by class of operations, of the passes alone, and of those that arithmetic limits.

    shares: phase -> its share of all seconds.
    """

    by_kind: dict[str, float]
    passes_seconds: float
    arithmetic_seconds: float
    shares: dict[str, float]


@dataclass(frozen=True)
class _Device:
    """Seconds of the device with what it waits for: likely, at best and at worst; by class of operations; and of the
    copies between it and the host."""

    seconds: float
    low_seconds: float
    high_seconds: float
    by_kind: dict[str, float]
    copying_seconds: float


def _device(
    kernels: _Kernels,
    waited: Transfers,
    gpu: Gpu,
    num_processes: int,
    reached: Efficiencies,
    paging: Paging,
    interval: tuple[float, float],
    error: float,
) -> _Device:
    """What the kernels take, with the slowest of the GPUs, with pages that come and go, and with the collectives that
    are waited for. interval: of the computation, in shares of its likely time. error: of the efficiencies."""
    by_kind = dict(kernels.by_kind)
    copying = by_kind.get(ops.HOST_COPY, 0.0)
    least_copying = copying
    if paging.homeless_bytes:  # at best the states that have room stay on the device
        copying += links.host_copy_seconds(2 * paging.bytes, gpu)
        least_copying += links.host_copy_seconds(2 * paging.homeless_bytes, gpu)
    by_kind[ops.HOST_COPY] = copying
    by_kind[ops.COLLECTIVE] = waited.seconds
    waiting = kernels.arithmetic_seconds * slowest_of(num_processes, reached)
    seconds = sum(by_kind.values()) + waiting
    computing = seconds - copying - waited.seconds
    shortest, longest = interval
    low = computing * shortest + least_copying * links.HOST_LINK / links.HOST_LINK_BEST + waited.low_seconds(error)
    high = computing * longest + copying * links.HOST_LINK / links.HOST_LINK_WORST + waited.high_seconds(error)
    return _Device(seconds, low, high, by_kind, copying)


def _kernels(tally: Tally, gpu: Gpu, precision: str, reached: Efficiencies) -> _Kernels:
    """What the device needs for the operations of a step, without the collectives."""
    by_kind: dict[str, float] = defaultdict(float)
    arithmetic_seconds = 0.0
    by_phase = dict.fromkeys(tally.counts, 0.0)
    for phase, counts in tally.counts.items():
        for operation, times in counts.items():
            if operation.kind == ops.COLLECTIVE:
                continue
            seconds = times * device_seconds(operation, gpu, precision, reached)
            by_kind[operation.kind] += seconds
            by_phase[phase] += seconds
            if operation.flops and is_arithmetic(operation, gpu, precision, reached):
                arithmetic_seconds += seconds
    total = sum(by_phase.values())
    shares = {phase: seconds / total if total else 1 / len(by_phase) for phase, seconds in by_phase.items()}
    return _Kernels(by_kind, total - by_phase.get(OPTIMIZER_PHASE, 0.0), arithmetic_seconds, shares)


def predict_compiled(tally: Tally, *args: Any, **figures: Any) -> Prediction:
    """As `predict`, of a step that torch.compile compiles: as it is written, and at best without what it can fuse."""
    written = predict(tally, *args, **figures)
    fused = predict(tally.without_fusible(), *args, **figures)
    low_seconds = min(written.low_seconds, fused.low_seconds)
    return replace(written, low_seconds=low_seconds, notes=[*written.notes, FUSED])


def _host_seconds(tally: Tally, gpu: Gpu, precision: str, reached: Efficiencies) -> float:
    """What the host needs for its calls."""
    total = 0.0
    for phase, calls in tally.calls.items():
        seconds = calls * reached.host_seconds[phase]
        if precision in AUTOCAST:
            seconds *= reached.autocast[phase]
        total += seconds
    return total * (gpu.host_factor or 1.0)


def overlapped(phases: Iterable[Phase], host_seconds: float) -> float:
    """The seconds of a step: of its phases, one after the other, or of the host where it needs longer."""
    return max(host_seconds, sum(phase.seconds for phase in phases))


def is_arithmetic(operation: Operation, gpu: Gpu, precision: str, reached: Efficiencies) -> bool:
    """Whether a product or an attention takes longer for its arithmetic than its bytes take."""
    tflops = getattr(gpu, f"{arithmetic(operation, precision, gpu)}_tflops") or 0.0
    return operation.flops * gpu.bandwidth_gb_per_second * 1e9 > operation.bytes * tflops * 1e12


def device_seconds(operation: Operation, gpu: Gpu, precision: str, reached: Efficiencies) -> float:
    """The seconds of one call on the device: launches, arithmetic and memory traffic.

    Raises ValueError where the GPU lacks a dtype that the operation computes in.
    """
    launching = operation.kernels * reached.kernel_seconds
    if operation.kind == ops.HOST_COPY:
        return launching + links.host_copy_seconds(operation.bytes, gpu)
    if not operation.flops:
        return launching + traffic_seconds(operation, gpu, reached)
    dtype = arithmetic(operation, precision, gpu)
    peak = getattr(gpu, f"{dtype}_tflops", None)
    if peak is None:
        raise ValueError(f"{gpu.device_name} has no figure for arithmetic in {dtype}, which {operation.name} needs.")
    peak *= power_share(gpu, reached)
    if operation.kind == ops.ATTENTION:
        rate = peak * 1e12 * reached.attention[attention_kernel(operation.name)]
        return launching + max(traffic_seconds(operation, gpu, reached), operation.flops / rate)
    rate = peak * 1e12 * reached.matmul[dtype] * reached.sustained[dtype]
    done = float(operation.flops)
    if operation.shape:
        done = product_flops(operation.shape, gpu.sm_count, reached.tile_depth[dtype])
        if operation.shape[0] > 1:
            rate *= reached.batched[dtype]
        if dtype in ("fp16", "bf16") and any(side % 8 for side in operation.shape[1:]):
            rate *= reached.unaligned
    moved = operation.bytes * _through_cache(operation.bytes, reached)
    moving = moved / (gpu.bandwidth_gb_per_second * 1e9 * reached.product_bandwidth[dtype])
    return launching + joined(done / rate, moving, reached.sharpness[dtype])


def slowest_of(num_processes: int, reached: Efficiencies) -> float:
    """By which share the slowest of so many GPUs is expected to compute products longer than the usual one.

    The expected largest of n normal numbers, by Blom's formula.
    """
    if num_processes == 1:
        return 0.0
    return reached.boards * NormalDist().inv_cdf((num_processes - 0.375) / (num_processes + 0.25))


def power_share(gpu: Gpu, reached: Efficiencies) -> float:
    """What is left of the rate of products where gpu.power_limit lowers the board's power."""
    return (gpu.power_limit or 1.0) ** reached.power


def traffic_seconds(operation: Operation, gpu: Gpu, reached: Efficiencies) -> float:
    """The seconds that the bytes of an operation take.

    What an operation reads was mostly written by the one before it: the smaller its tensors, the more of them is still
    in the L2 cache, which is `l2_speed` times as fast. Softmax reads long rows twice more, and a normalisation once,
    where the rows in flight exceed what the cache holds. Small elements, of 16 bits, are as much work for the
    multiprocessors as larger ones (`elements_per_cycle`), which overlaps with their traffic.
    """
    working = element_seconds(operation, gpu, reached)
    return joined(working, _moving_seconds(operation, gpu, reached), ELEMENT_SHARPNESS)


def element_seconds(operation: Operation, gpu: Gpu, reached: Efficiencies) -> float:
    """The seconds in which the multiprocessors work on the elements of an operation, were memory infinitely fast."""
    if operation.kind not in (ops.ELEMENTWISE, ops.REDUCTION, ops.COPY) or gpu.fp32_tflops is None:
        return 0.0
    lanes = 128
    if gpu.capability in HALF_LANES or gpu.capability.split(".")[0] in HALF_LANES:
        lanes = 64
    cycles_per_second = gpu.fp32_tflops * 1e12 / (2 * lanes)  # of all multiprocessors together
    return operation.elements / (reached.elements_per_cycle * cycles_per_second)


def _moving_seconds(operation: Operation, gpu: Gpu, reached: Efficiencies) -> float:
    bandwidth = gpu.bandwidth_gb_per_second * 1e9
    if operation.kind == ops.REDUCTION and operation.shape:
        key, read_again = operation.kind, 2  # a softmax: how often its rows are read again where they do not fit
        if "norm" in operation.name:
            key, read_again = "normalisation", 1
        row_bytes = operation.bytes / (2 * operation.shape[0])
        bytes_in_flight = gpu.sm_count * ROWS_PER_SM[key] * row_bytes
        outside = 0.0  # the share that the cache does not hold
        if bytes_in_flight:
            outside = 1 / (1 + (reached.l2_bytes / bytes_in_flight) ** SPILL)
        passes = 1 + outside * read_again / 2
        return operation.bytes * passes / (bandwidth * reached.bandwidth[key])
    share = reached.bandwidth.get(operation.kind, reached.bandwidth[ops.ELEMENTWISE])  # the latter: an empty product
    return operation.bytes * _through_cache(operation.bytes, reached) / (bandwidth * share)


def _through_cache(size_bytes: int, reached: Efficiencies) -> float:
    """The time of so many bytes where a part of them is in the L2 cache, as a share of that without a cache."""
    if not reached.l2_bytes:
        return 1.0
    kept = max(0.0, 1 - size_bytes / (2 * reached.l2_bytes))
    return 1 - kept * (1 - 1 / reached.l2_speed)


def arithmetic(operation: Operation, precision: str, gpu: Gpu) -> str:
    """The dtype whose peak limits an operation: with tf32, matrix products of fp32 run on the tensor cores.

    A GPU whose tensor cores lack tf32 computes in fp32 whatever is allowed.
    """
    if operation.dtype == "tf32" or (precision == "tf32" and operation.dtype == "fp32"):
        return "tf32" if gpu.tf32_tflops else "fp32"
    return operation.dtype


def attention_kernel(name: str) -> str:
    """The key of `Efficiencies.attention` for an attention operation of aten."""
    for kernel in ("flash", "efficient", "cudnn"):
        if kernel in name:
            return kernel
    return "other"


def _copies_note(copying: float, gpu: Gpu) -> list[str]:
    if copying < LEAST_COPIES:
        return []
    return [
        f"speed: copies between GPU and host take {copying * 1000:,.3g} ms of the step, at {links.HOST_LINK:.0%} of "
        f"{gpu.host_link_gb_per_second:g} GB/s (gpu.host_link_gb_per_second); published are "
        f"{links.HOST_LINK_WORST:.0%} to {links.HOST_LINK_BEST:.0%}. Nothing else is taken to run at the same time."
    ]


def _notes(tally: Tally, gpu: Gpu, reached: Efficiencies) -> list[str]:
    notes = []
    if tally.idle:
        share = tally.idle / (1 + tally.idle)
        notes.append(
            f"speed: every rank of the pipeline is taken to wait for others in {share:.0%} of the passes' time."
        )
    if gpu.power_limit is not None:
        notes.append(
            f"speed: with {gpu.power_limit:.0%} of its power (gpu.power_limit) products run at "
            f"{power_share(gpu, reached):.0%} of their rate, by boards of one chip with different power."
        )
    if reached.source == "published":
        notes.append(f"speed: efficiencies of {gpu.chip} as others published them, not fitted to measured runs.")
    elif reached.source == "assumed":
        notes.append(f"speed: the efficiencies of {gpu.chip} are not known; the defaults are assumed.")
    if tally.unknown:
        notes.append(f"speed: the bytes of {', '.join(sorted(tally.unknown))} are estimated from the arguments.")
    if tally.shares_experts:
        notes.append(
            "speed: published steps whose ranks share out experts took 1.5 to 2 times the prediction, of which a "
            "part is explained (docs/results/published_ranks.md). The longest time is twice the predicted one."
        )
    if any(operation.name in ops.CONVOLUTIONS for operation, _ in tally.operations()):
        notes.append(
            "convolutions: their time is that of large matrix products of as many FLOPs, and cuDNN's workspaces are "
            "not counted; neither was compared with a GPU."
        )
    return notes
