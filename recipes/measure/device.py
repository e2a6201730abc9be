"""What a device says of its memory: CUDA's allocator, NVML for the whole device, the host's RSS."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import yaml

from recipes import machine

MIB = 2**20
BUSY_BYTES = 600 * MIB  # an idle GPU shows up to about 500 MiB that the driver keeps


def nvml_used_bytes() -> int | None:
    """Memory in use on the job's GPU, by every process together; None without one."""
    visible = machine.gpus()
    if not visible:
        return None
    import pynvml

    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(visible[0].index)).used)


def others_on_device() -> list[int]:
    """Process ids of other programs that compute on the job's GPU (empty inside most containers)."""
    import os

    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(machine.gpus()[0].index)
    return [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid != os.getpid()]


def host_peak_rss_bytes() -> int:
    """The most memory that this process ever had in RAM."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # the unit is the system's choice


def peak_flops(device_name: str, precision: str) -> float | None:
    """Dense peak FLOP/s of a device in a precision's arithmetic; None for a device that the table lacks."""
    row = {"bf16_pure": "bf16"}.get(precision, precision)
    table = yaml.safe_load(Path(__file__).with_name("peaks.yaml").read_text())
    for device in table:
        if device["name"] in device_name:
            return device[row] * 1e12 if row in device else None
    return None
