"""Memory in use, as NVML reports it for the whole device and the system for this process."""

from __future__ import annotations

import os
import resource
import sys

from recipes.machine import host, nvml


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
