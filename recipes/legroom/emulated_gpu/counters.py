"""What the device was asked to do so far, read in the process that runs on it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Counters:
    """Of one device, since the process began. The order is that of LegroomGpuCounters in device/launches.cpp."""

    launches: int  # kernels, with those of replayed graphs and of libraries
    library_launches: int  # of these: calls of cuBLAS, cuDNN and their kin, and collectives
    graph_launches: int  # replays of CUDA graphs
    copies_to_device: int
    copies_to_host: int
    copies_on_device: int
    synchronisations: int  # calls that wait for the device
    used_bytes: int  # without the context
    peak_bytes: int
    context_bytes: int
    total_bytes: int


def counters(device: int = 0) -> Counters | None:
    """The counters of a device by CUDA's ordinal, or None where this process runs on no emulated device."""
    names = [field.name for field in fields(Counters)]
    values = (ctypes.c_uint64 * len(names))()
    try:
        read = ctypes.CDLL(None).legroom_gpu_counters
    except AttributeError:
        return None
    read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    if read(device, values, ctypes.sizeof(values)) != 0:
        return None
    return Counters(**dict(zip(names, values, strict=True)))
