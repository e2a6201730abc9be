"""Memory in use, as NVML reports it for the whole device and the system for this process."""

import os
import resource
import sys

from legroom import units
from legroom.errors import Refusal
from legroom.machine import host, nvml
from legroom.records.messages import Progress
from legroom.records.record import Memory, Record
from legroom.units import GIB


def nvml_used_bytes() -> int | None:
    """Memory in use on the job's GPU, by all processes together; None without a GPU."""
    gpus = host.gpus()
    if not gpus:
        return None
    return nvml.used_bytes(gpus[0].uuid)


def host_peak_rss_bytes() -> int:
    """The largest resident set size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak
    return peak * 1024  # Linux counts KiB


def in_use(on_gpu: bool, limit_gib: float | None, record: Record) -> tuple[int, int] | None:
    """(bytes in use, bytes that may be) while a job trains, from counters alone: nothing waits for the device.

    On a GPU what torch's allocator has reserved, with CUDA's context beside the whole device or without it beside
    `launch.memory_limit_gib`. On a CPU what this process takes of the machine, or of the limit. None: not known.
    """
    if on_gpu:
        return _in_use_on_gpu(limit_gib, record)
    import psutil

    memory = psutil.Process().memory_info()
    if limit_gib is None:
        machine = host.memory_bytes()
        if machine is None:
            return None
        return memory.rss, machine
    if not hasattr(memory, "data"):  # macOS
        return None
    limit = int(limit_gib * GIB)
    imported = resource.getrlimit(resource.RLIMIT_DATA)[0] - limit  # as worker_environment.limit_memory has set it
    return max(0, memory.data - imported), limit


def _in_use_on_gpu(limit_gib: float | None, record: Record) -> tuple[int, int] | None:
    import torch

    reserved = torch.cuda.memory_reserved()
    if limit_gib is not None:
        return reserved, int(limit_gib * GIB)
    device_bytes = record.environment.get("device_memory_bytes")
    if device_bytes is None:
        return None
    return reserved + (record.memory.context_bytes or 0), device_bytes


def open_gpu(memory: Memory, progress: Progress) -> None:
    """Create the CUDA context and note what it takes; warn if other processes use the GPU.

    Raises Refusal if this build of torch cannot use the GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise Refusal(
            "NVML shows a GPU, but torch cannot use it: the driver may be too old for this build of "
            "torch. Update it, or choose device=cpu."
        )
    used_bytes = nvml_used_bytes()
    memory.device_used_at_start_bytes = used_bytes
    _warn_of_others(used_bytes or 0, progress)
    try:
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
    except RuntimeError as error:
        if "no kernel image" not in str(error):
            raise
        raise Refusal(
            f"this build of torch has no code for {torch.cuda.get_device_name(0)}, only for "
            f"{', '.join(torch.cuda.get_arch_list())}. Install another build, or choose device=cpu."
        ) from error
    memory.context_bytes = difference(nvml_used_bytes(), used_bytes)


def _warn_of_others(used_bytes: int, progress: Progress) -> None:
    others = [str(pid) for pid in nvml.compute_process_ids(host.gpus()[0].uuid) if pid != os.getpid()]
    if not others and used_bytes <= nvml.IDLE_GPU_BYTES:
        return
    by = ""
    if others:
        by = f" by process {', '.join(others)}"
    progress.warn(
        f"the GPU is not empty: {units.size(used_bytes)} are in use{by}; this run's times and memory figures are "
        "affected."
    )


def difference(after_bytes: int | None, before_bytes: int | None) -> int | None:
    """The growth in bytes; None if NVML gave no figure."""
    if after_bytes is None or before_bytes is None:
        return None
    return after_bytes - before_bytes
