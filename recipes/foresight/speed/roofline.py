"""The seconds of a step by a roofline model, from its operations and the figures of a GPU.

Each operation takes the longer of its arithmetic and its memory traffic, at the fraction of the GPU's peaks that its
class of operations reaches (efficiencies.yaml). The host issues calls ahead of the device, and the link transfers
gradients and gathered weights while the device computes, so a step takes the longest of the three, plus the transfer
that nothing can overlap.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from recipes.config import Gpu
from recipes.foresight.speed.operation_names import ATTENTION, COLLECTIVE
from recipes.foresight.speed.operations import Operation, Tally

EFFICIENCIES = Path(__file__).with_name("efficiencies.yaml")
# Tile sizes (rows, columns of the result) of the libraries' matrix product kernels. Larger tiles reuse more of what
# they load, and a product is computed in whole tiles and in whole waves of tiles: NVIDIA's 'Matrix Multiplication
# Background' guide.
TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (32, 32))
SPLITS = (1, 2, 4, 8, 16)  # a product with few tiles divides K into so many parts and adds their results
LEAST_SPLIT = 256  # the least length of K in one part
REUSE = 32  # FLOPs per loaded element at which a tile is half as fast as an infinitely large one (assumed)
_LARGEST = (256 * 128 / (256 + 128)) / (256 * 128 / (256 + 128) + REUSE)  # speed of the largest tile, by REUSE
GPUS_PER_MACHINE = 8


@dataclass(frozen=True)
class Efficiencies:
    """What a chip reaches of its peaks; the keys of efficiencies.yaml, which explains them.

    source: published, measured or assumed (the key `from`).
    """

    source: str
    runs: tuple[str, ...]
    matmul: dict[str, float]
    unaligned: float
    attention: dict[str, float]
    bandwidth: dict[str, float]
    kernel_seconds: float
    host_seconds: dict[str, float]
    link: float
    link_seconds: float


@dataclass
class Prediction:
    """The predicted seconds of a step, and their parts.

    device_seconds, host_seconds and link_seconds overlap (`overlapped`). by_kind: the seconds of the device by class of
    operations. notes: assumptions to know before relying on the prediction. collectives: their number.
    """

    step_seconds: float
    device_seconds: float
    host_seconds: float
    link_seconds: float
    by_kind: dict[str, float]
    efficiencies_from: str
    notes: list[str] = field(default_factory=list)
    collectives: int = 0


@functools.cache
def efficiencies(chip: str) -> Efficiencies:
    """The efficiencies of a chip (`chip` in conf/gpu/); keys that it does not have come from `default`."""
    table = yaml.safe_load(EFFICIENCIES.read_text())
    values, own = table["default"], table["chips"].get(chip, {})
    merged = {
        key: value | own.get(key, {}) if isinstance(value, dict) else own.get(key, value)
        for key, value in values.items()
    }
    return Efficiencies(source=merged.pop("from"), runs=tuple(own.get("runs", ())), **merged)


def efficiencies_of(gpu: Gpu) -> Efficiencies:
    """The efficiencies of a GPU."""
    return efficiencies(gpu.chip)


def predict(
    tally: Tally, gpu: Gpu, precision: str, num_processes: int = 1, reached: Efficiencies | None = None
) -> Prediction:
    """The seconds of the step whose operations a tally holds.

    gpu: resolved. precision: the option's name; tf32 runs fp32 matrix products on the tensor cores. num_processes:
    ranks that take part in the collectives, over the GPU's link. reached: instead of the chip's efficiencies.

    Raises ValueError where the GPU lacks a dtype that the step computes in.
    """
    reached = reached or efficiencies_of(gpu)
    by_kind: dict[str, float] = defaultdict(float)  # seconds
    link_seconds, collectives = 0.0, 0
    for counts in tally.counts.values():
        for operation, times in counts.items():
            if operation.kind == COLLECTIVE:
                link_seconds += times * collective_seconds(operation, gpu, num_processes, reached)
                collectives += times
            else:
                by_kind[operation.kind] += times * device_seconds(operation, gpu, precision, reached)
    device = sum(by_kind.values())
    host = sum(times * reached.host_seconds[phase] for phase, times in tally.calls.items())
    return Prediction(
        overlapped(device, host, link_seconds, collectives),
        device,
        host,
        link_seconds,
        dict(by_kind),
        reached.source,
        _notes(tally, gpu, num_processes, reached),
        collectives,
    )


def overlapped(device_seconds: float, host_seconds: float, link_seconds: float, collectives: float) -> float:
    """The seconds of a step: the longest of device, host and link, which work at the same time.

    The last collective overlaps with nothing; it takes an equal share of link_seconds.
    """
    exposed = link_seconds / collectives if collectives else 0.0
    return max(device_seconds, host_seconds, link_seconds - exposed) + exposed


def device_seconds(operation: Operation, gpu: Gpu, precision: str, reached: Efficiencies) -> float:
    """The seconds of one call on the device: launches, then the longer of arithmetic and memory traffic."""
    moving = operation.bytes / (gpu.bandwidth_gb_per_second * 1e9 * reached.bandwidth[operation.kind])
    computing = 0.0
    if operation.flops:
        dtype = arithmetic(operation, precision)
        peak = getattr(gpu, f"{dtype}_tflops", None)
        if peak is None:
            raise ValueError(
                f"{gpu.device_name} has no figure for arithmetic in {dtype}, which {operation.name} needs."
            )
        if operation.kind == ATTENTION:
            computing = operation.flops / (peak * 1e12 * reached.attention[attention_kernel(operation.name)])
        else:
            rate = peak * 1e12 * reached.matmul[dtype]
            if dtype in ("fp16", "bf16") and any(side % 8 for side in operation.shape[1:]):
                rate *= reached.unaligned
            done = product_flops(operation.shape, gpu.sm_count) if operation.shape else operation.flops
            computing = done / rate
    return operation.kernels * reached.kernel_seconds + max(moving, computing)


def arithmetic(operation: Operation, precision: str) -> str:
    """The dtype whose peak limits an operation: with tf32, matrix products of fp32 run on the tensor cores."""
    return "tf32" if precision == "tf32" and operation.dtype == "fp32" else operation.dtype


def attention_kernel(name: str) -> str:
    """The key of `Efficiencies.attention` for an attention operation of aten."""
    return next((kernel for kernel in ("flash", "efficient", "cudnn") if kernel in name), "other")


@functools.cache
def product_flops(shape: tuple[int, int, int, int], sm_count: int) -> float:
    """The FLOPs of a batch of matrix products, with those that incomplete tiles and waves waste, by the best tile size.

    Divided by the rate of a large, well-shaped product, they give the seconds. A wave takes as long as one
    multiprocessor needs for one tile, however few multiprocessors have one.

    shape: (batch, M, N, K). sm_count: multiprocessors of the GPU.
    """
    batch, rows, columns, depth = shape
    best = math.inf
    for height, width in TILES:
        reuse = height * width / (height + width)
        of_best = reuse / (reuse + REUSE) / _LARGEST  # the speed of this tile size, of the largest's
        for parts in SPLITS:
            if parts > 1 and depth < parts * LEAST_SPLIT:
                break
            tiles = batch * math.ceil(rows / height) * math.ceil(columns / width) * parts
            tile_flops = 2 * height * width * math.ceil(depth / parts)
            best = min(best, math.ceil(tiles / sm_count) * sm_count * tile_flops / of_best)
    return best


def collective_seconds(operation: Operation, gpu: Gpu, num_processes: int, reached: Efficiencies) -> float:
    """The seconds of a collective by the ring algorithm (Patarasuk and Yuan 2009).

    n ranks take n - 1 steps, each of which sends an nth of the tensor; all-reduce takes twice as many.

    operation.bytes: of the whole tensor, as each rank has it before or after. operation.shape: (ranks,) where not all
    of num_processes take part.
    """
    ranks = operation.shape[0] if operation.shape else num_processes
    if ranks == 1:
        return 0.0
    all_reduce = "allreduce" in operation.name or "all_reduce" in operation.name
    steps = (ranks - 1) * (2 if all_reduce else 1)
    sent = steps / ranks * operation.bytes
    return steps * reached.link_seconds + sent / (gpu.link_gb_per_second * 1e9 * reached.link)


def _notes(tally: Tally, gpu: Gpu, num_processes: int, reached: Efficiencies) -> list[str]:
    notes = []
    if reached.source == "published":
        notes.append(f"speed: efficiencies of {gpu.chip} as others published them, not fitted to measured runs.")
    elif reached.source == "assumed":
        notes.append(f"speed: the efficiencies of {gpu.chip} are not known; the defaults are assumed.")
    if tally.unknown:
        notes.append(f"speed: the bytes of {', '.join(sorted(tally.unknown))} are estimated from the arguments.")
    if num_processes > GPUS_PER_MACHINE:
        notes.append(
            f"speed: {num_processes} processes on one link of {gpu.link_gb_per_second:g} GB/s; between "
            "machines it is slower."
        )
    return notes
