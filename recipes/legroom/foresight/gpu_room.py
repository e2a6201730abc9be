"""The room that a GPU has for torch's allocator, and the verdict on what a step needs of it. Imports no torch."""

import math

from legroom.config import Gpu
from legroom.foresight.speed import calibrated
from legroom.machine import gpu_specs
from legroom.records.record import DOES_NOT_FIT, FITS, STEP, TIGHT, Estimate
from legroom.units import GIB


def usable_bytes(gpu: Gpu, nccl_bytes: int, memory_limit_gib: float | None) -> int:
    """What CUDA's context, NCCL and a limit leave of a GPU for torch's allocator."""
    free = gpu.memory_bytes - context(gpu)[0] - nccl_bytes
    return free if memory_limit_gib is None else min(free, int(memory_limit_gib * GIB))


def context(gpu: Gpu) -> tuple[int, bool]:
    """(bytes that CUDA's context takes, whether they were measured): what was typed, what `calibrate` measured
    here, or what conf/gpu/ has."""
    here, listed = calibrated.gpu(gpu.device_name), gpu_specs.find(gpu.device_name, gpu.memory_bytes)
    typed = listed is not None and listed["context_bytes"] != gpu.context_bytes
    if here is None or here.context_bytes is None or typed:
        return gpu.context_bytes, gpu.context_from == "measured"
    return here.context_bytes, True


def judged(gpu: Gpu, share: float, margin_bytes: int, reserved_bytes: int, lacking_bytes: int = 0) -> Estimate:
    """The verdict on a step that reserves so much and leaves margin_bytes free.

    Measured memory exceeds a prediction now and then, so that 'fits' keeps a share of it free (`estimate.margin`), and
    beside it what batches of different lengths lacked where just reserved_bytes were there (lacking_bytes).
    """
    kept = math.ceil(share * reserved_bytes) + (lacking_bytes if share else 0)
    verdict = DOES_NOT_FIT if margin_bytes < 0 else TIGHT if margin_bytes < kept else FITS
    return Estimate(verdict == FITS, margin_bytes, gpu.memory_bytes, verdict, kept, decided_by=STEP)
