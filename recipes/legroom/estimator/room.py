"""The room that a GPU has for torch's allocator. Imports no torch."""

from legroom.config import Gpu
from legroom.estimator.speed import calibrated
from legroom.machine import gpu_specs
from legroom.units import GIB


def usable_bytes(gpu: Gpu, nccl_bytes: int, memory_limit_gib: float | None) -> int:
    """What other processes, CUDA's context, NCCL and a limit leave of a GPU for torch's allocator."""
    free = gpu.memory_bytes - context(gpu)[0] - nccl_bytes - int((gpu.used_gib or 0) * GIB)
    if memory_limit_gib is None:
        return free
    return min(free, int(memory_limit_gib * GIB))


def context(gpu: Gpu) -> tuple[int, bool]:
    """(bytes of CUDA's context, whether they were measured).

    A number that was typed stands over what `calibrate` measured on this machine, and that over the card's file.
    """
    card = gpu_specs.find(gpu.device_name, gpu.memory_bytes)
    is_typed = card is not None and card["context_bytes"] != gpu.context_bytes
    measured = calibrated.gpu(gpu.device_name)
    if is_typed or measured is None or measured.context_bytes is None:
        return gpu.context_bytes, gpu.context_from == "measured"
    return measured.context_bytes, True
