"""The figures of the device: torch's allocator, and the counters of the emulated device."""

from __future__ import annotations

import ctypes

import torch

COUNTERS = ("launches", "library_launches", "graph_launches", "copies_to_device", "copies_to_host", "copies_on_device")
COUNTERS += ("synchronisations", "used_bytes", "peak_bytes", "context_bytes", "total_bytes")


def peaks():
    """The peaks of torch's allocator since the last call of forget_peaks, in bytes; and how often it ran out."""
    if not torch.cuda.is_initialized():
        return {"allocated": 0, "reserved": 0, "ooms": 0, "retries": 0}
    stats = torch.cuda.memory_stats()
    return {
        "allocated": stats.get("allocated_bytes.all.peak", 0),
        "reserved": stats.get("reserved_bytes.all.peak", 0),
        "requested": stats.get("requested_bytes.all.peak", 0),
        "ooms": stats.get("num_ooms", 0),
        "retries": stats.get("num_alloc_retries", 0),
    }


def forget_peaks():
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def counters():
    """What the emulated device has counted, by name; None on another device (emulated_gpu/counters.py)."""
    try:
        read = ctypes.CDLL(None).legroom_gpu_counters
    except AttributeError:
        return None
    values = (ctypes.c_uint64 * len(COUNTERS))()
    read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    if read(index, values, ctypes.sizeof(values)) != 0:
        return None
    return dict(zip(COUNTERS, values))


def difference(before):
    """What was counted since `before`; None where nothing counts."""
    now = counters()
    if before is None or now is None:
        return None
    return {name: now[name] - before[name] for name in COUNTERS[:7]}


def name():
    """The name of the device of a real run."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
