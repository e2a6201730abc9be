"""Memory in use, as NVML reports it for the whole device and the system for this process."""

from __future__ import annotations

import os
import resource
import sys

from legroom.machine import host, nvml
from legroom.records.record import Record
from legroom.units import GIB


def nvml_used_bytes() -> int | None:
    """Memory in use on the job's GPU, by all processes together; None without a GPU."""
    return nvml.used_bytes(host.gpus()[0].uuid) if host.gpus() else None


def others_on_device() -> list[int]:
    """Ids of other processes that compute on the job's GPU (empty inside most containers)."""
    return [pid for pid in nvml.compute_process_ids(host.gpus()[0].uuid) if pid != os.getpid()]


def host_peak_rss_bytes() -> int:
    """The largest resident set size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def in_use(on_gpu: bool, limit_gib: float | None, record: Record) -> tuple[int, int] | None:
    """(bytes in use, bytes that may be) while a job trains, from counters alone: nothing waits for the device.

    On a GPU what torch's allocator has reserved, with CUDA's context beside the whole device or without it beside
    `launch.memory_limit_gib`. On a CPU what this process takes of the machine, or of the limit. None: not known.
    """
    if on_gpu:
        import torch

        reserved = torch.cuda.memory_reserved()
        if limit_gib is not None:
            return reserved, int(limit_gib * GIB)
        device_bytes = record.environment.get("device_memory_bytes")
        return (reserved + (record.memory.context_bytes or 0), device_bytes) if device_bytes else None
    import psutil

    memory = psutil.Process().memory_info()
    if limit_gib is None:
        limit = host.memory_bytes()
        return (memory.rss, limit) if limit else None
    if not hasattr(memory, "data"):  # macOS
        return None
    limit = int(limit_gib * GIB)
    imported = resource.getrlimit(resource.RLIMIT_DATA)[0] - limit  # as worker_environment.limit_memory has set it
    return max(0, memory.data - imported), limit
