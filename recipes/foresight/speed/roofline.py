"""The seconds of a step, from its operations and a device's figures.

Each operation takes the longer of its arithmetic and its bytes against what the device reaches of its
peaks (efficiencies.yaml). The host issues calls ahead of the device, and the link moves gradients and
gathered weights beside it, so a step takes the longest of the three, and of the traffic what cannot hide.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from recipes.foresight.speed.operations import ATTENTION, COLLECTIVE, MATMUL, Operation, Tally, classify  # noqa: F401

EFFICIENCIES = Path(__file__).with_name("efficiencies.yaml")
# Tiles of a product that the libraries have kernels for. NVIDIA's 'Matrix Multiplication Background' guide: larger
# ones reuse more of what they load, and a product is done in whole tiles and in whole waves of them.
TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (32, 32))
SPLITS = (1, 2, 4, 8, 16)  # parts of K that are summed afterwards, where a product has too few tiles
LEAST_SPLIT = 256  # of K in one part
REUSE = 32  # FLOPs a loaded element at which a tile is half as fast as an endless one (assumed)
GPUS_A_MACHINE = 8


@dataclass(frozen=True)
class Efficiencies:
    """What a chip reaches; the keys of efficiencies.yaml. `source`: published, measured or assumed."""

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
    """A step's seconds, and what they are made of.

    device_seconds, host_seconds and link_seconds overlap: step_seconds is their longest, with the part of the
    link's that cannot hide. by_kind: the device's seconds by class of operation. notes: what to know before
    relying on it. collectives: how many there are.
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
    """Those of a chip, completed from the default."""
    table = yaml.safe_load(EFFICIENCIES.read_text())
    values, own = table["default"], table["chips"].get(chip, {})
    merged = {
        key: value | own.get(key, {}) if isinstance(value, dict) else own.get(key, value)
        for key, value in values.items()
    }
    return Efficiencies(source=merged.pop("from"), runs=tuple(own.get("runs", ())), **merged)


def predict(
    tally: Tally, gpu, precision: str, num_processes: int = 1, reached: Efficiencies | None = None
) -> Prediction:
    """The seconds of the step that a tally holds, on a GPU.

    gpu: config.Gpu, resolved. precision: the option's name; tf32 puts fp32 products on the matrix units.
    num_processes: ranks that share the collectives, over gpu's link. reached: instead of the chip's.

    Raises ValueError where the GPU lacks a dtype that the step computes in.
    """
    reached = reached or efficiencies(gpu.chip)
    by_kind, link_seconds, collectives = Counter(), 0.0, 0
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
    """The seconds of a step: collectives run beside the computation, but for the last, which has nothing to hide behind."""
    exposed = link_seconds / collectives if collectives else 0.0
    return max(device_seconds, host_seconds, link_seconds - exposed) + exposed


def device_seconds(operation: Operation, gpu, precision: str, reached: Efficiencies) -> float:
    """One operation on the device: launch, then the longer of arithmetic and bytes."""
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
    """The arithmetic of an operation: tf32 puts the products of fp32 on the matrix units."""
    return "tf32" if precision == "tf32" and operation.dtype == "fp32" else operation.dtype


def attention_kernel(name: str) -> str:
    """The row of the table of efficiencies for an attention operation of aten's."""
    return next((kernel for kernel in ("flash", "efficient", "cudnn") if kernel in name), "other")


@functools.cache
def product_flops(shape: tuple[int, int, int, int], sm_count: int) -> float:
    """What a batch of products costs by the best of the tiles: its FLOPs, and those that it wastes.

    shape: (batch, M, N, K). Over the rate of a large, well-shaped product it gives the seconds. A wave is as long
    as one multiprocessor needs for one tile, however few of them have one.
    """
    batch, rows, columns, depth = shape
    best = math.inf
    for height, width in TILES:
        reuse = height * width / (height + width)
        of_best = reuse / (reuse + REUSE) / _LARGEST
        for parts in SPLITS:
            if parts > 1 and depth < parts * LEAST_SPLIT:
                break
            tiles = batch * math.ceil(rows / height) * math.ceil(columns / width) * parts
            tile_flops = 2 * height * width * math.ceil(depth / parts)
            best = min(best, math.ceil(tiles / sm_count) * sm_count * tile_flops / of_best)
    return best


_LARGEST = (256 * 128 / (256 + 128)) / (256 * 128 / (256 + 128) + REUSE)  # of the largest tile: counted as 1


def collective_seconds(operation: Operation, gpu, num_processes: int, reached: Efficiencies) -> float:
    """A collective by a ring (Patarasuk and Yuan 2009): n - 1 steps of an nth each, twice that to reduce to all.

    operation.bytes: the whole tensor, as each rank has it before or after. operation.shape: the ranks that take part,
    where they are not all of num_processes.
    """
    together = operation.shape[0] if operation.shape else num_processes
    if together == 1:
        return 0.0
    to_all = "allreduce" in operation.name or "all_reduce" in operation.name
    steps = (together - 1) * (2 if to_all else 1)
    sent = steps / together * operation.bytes
    return steps * reached.link_seconds + sent / (gpu.link_gb_per_second * 1e9 * reached.link)


def _notes(tally: Tally, gpu, num_processes: int, reached: Efficiencies) -> list[str]:
    notes = []
    if reached.source == "published":
        notes.append(f"speed: efficiencies of {gpu.chip} as others published them; none was fitted on a run of ours.")
    elif reached.source == "assumed":
        notes.append(f"speed: no efficiencies are known of {gpu.chip}; those of the table's default are assumed.")
    if tally.unknown:
        notes.append(f"speed: a guess from their bytes for {', '.join(sorted(tally.unknown))}.")
    if num_processes > GPUS_A_MACHINE:
        notes.append(
            f"speed: {num_processes} processes on one link of {gpu.link_gb_per_second:g} GB/s; between "
            "machines it is slower."
        )
    return notes
