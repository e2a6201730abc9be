"""What a device says of its memory: CUDA's allocator, NVML for the whole device, the host's RSS."""

from __future__ import annotations

import os
import resource
import sys

from recipes.machine import host
from recipes.units import MIB

BUSY_BYTES = 600 * MIB  # an idle GPU shows up to about 500 MiB that the driver keeps


def nvml_used_bytes() -> int | None:
    """Memory in use on the job's GPU, by every process together; None without one."""
    if not host.gpus():
        return None
    import pynvml

    return int(pynvml.nvmlDeviceGetMemoryInfo(host.nvml_handle()).used)


def others_on_device() -> list[int]:
    """Process ids of other programs that compute on the job's GPU (empty inside most containers)."""
    import pynvml

    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(host.nvml_handle())
    except pynvml.NVMLError:  # not every system tells
        return []
    return [process.pid for process in running if process.pid != os.getpid()]


def host_peak_rss_bytes() -> int:
    """The most memory that this process ever had in RAM."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # the unit is the system's choice
