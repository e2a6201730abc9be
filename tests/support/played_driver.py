"""torch's C functions for CUDA, streams and events, with the answers of the played GPUs (played_gpu.py)."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import torch
from played_gpu import CAPABILITY, CARDS, NAME, TOTAL_BYTES

ARCHITECTURES = ["sm_80", "sm_89", "sm_90"]  # that the build has code for
RECORDING: list[str] = []  # not empty while the history is recorded
HISTORY: list[dict] = []  # what the played allocator was asked since its history was started


def in_bad_fork() -> bool:
    """Whether a parent of this process has created the context, which does not survive a fork."""
    return CARDS.opened_by not in (None, os.getpid())


def _init() -> None:
    if not CARDS.visible():
        raise RuntimeError("No CUDA GPUs are available")
    CARDS.opened_by = os.getpid()
    torch.cuda.default_generators = tuple(torch.Generator() for _ in CARDS.visible())


def properties(index: int) -> SimpleNamespace:
    if index >= len(CARDS.visible()):
        raise AssertionError("Invalid device id")
    return SimpleNamespace(
        name=NAME,
        total_memory=TOTAL_BYTES,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        multi_processor_count=58,
        warp_size=32,
    )


def _set_device(index: int) -> None:
    if index >= len(CARDS.visible()):
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")
    CARDS.current = index


def exchange_device(index: int) -> int:
    before = CARDS.current
    if index >= 0:
        _set_device(index)
    return before


def memory_info(device) -> tuple[int, int]:
    return TOTAL_BYTES - CARDS.used_bytes, TOTAL_BYTES


def _memory_stats(device) -> dict:
    def figure(value):
        return {"all": dict.fromkeys(("current", "peak", "allocated", "freed"), value)}

    return {"allocated_bytes": figure(CARDS.allocated_bytes), "reserved_bytes": figure(CARDS.reserved_bytes)}


def _set_fraction(fraction: float, device: int) -> None:
    CARDS.fraction = fraction


def _record_history(enabled, *_, **__) -> None:
    HISTORY.clear()
    RECORDING[:] = ["on"] if enabled else []


C_FUNCTIONS = {
    "_cuda_getDeviceCount": lambda: len(CARDS.visible()),
    "_cuda_init": _init,
    "_cuda_isInBadFork": in_bad_fork,
    "_cuda_getDevice": lambda: CARDS.current,
    "_cuda_setDevice": _set_device,
    "_cuda_synchronize": lambda: None,
    "_cuda_emptyCache": lambda: None,
    "_host_emptyCache": lambda: None,
    "_cuda_getArchFlags": lambda: " ".join(ARCHITECTURES),
    "_cuda_memoryStats": _memory_stats,
    "_cuda_resetPeakMemoryStats": lambda device: None,
    "_cuda_setMemoryFraction": _set_fraction,
    "_cuda_record_memory_history": _record_history,
    "_cuda_memorySnapshot": lambda *_: {"segments": [], "device_traces": [list(HISTORY) for _ in CARDS.visible()]},
    "_cuda_getCurrentStream": lambda index: (0, index, 1),
    "_cuda_getCurrentRawStream": lambda index: 0,
    "_cuda_getDefaultStream": lambda index: (0, index, 1),
    "_cuda_setStream": lambda **_: None,
    "_accelerator_getAccelerator": lambda: torch.device("cuda") if CARDS.visible() else None,
    "_accelerator_getDeviceIndex": lambda: CARDS.current,
    "_accelerator_setDeviceIndex": _set_device,
    "_accelerator_exchangeDevice": exchange_device,
    "_accelerator_maybeExchangeDevice": exchange_device,
    "_accelerator_getStream": lambda index: Stream(device_index=index),
    "_accelerator_setStream": lambda stream: None,
    "_accelerator_synchronizeDevice": lambda index: None,
    # for torch.nn.DataParallel
    "_broadcast_coalesced": lambda tensors, devices, _: [[each.clone() for each in tensors] for _ in devices],
    "_scatter": lambda tensor, devices, sizes, dim, _: [*tensor.chunk(len(devices), dim)],
    "_gather": lambda tensors, dim, _: torch.cat(
        [each.reshape(1) if each.ndim == 0 else each for each in tensors], dim
    ),
}


class Event:
    """A CUDA event that takes place when it is recorded. Its time cannot be asked for without enable_timing."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_):
        self.enable_timing, self.seconds = enable_timing, None

    def record(self, stream=None) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds. Raises RuntimeError as CUDA's event does."""
        if not (self.enable_timing and end.enable_timing) or self.seconds is None or end.seconds is None:
            raise RuntimeError("Both events must be recorded, with argument 'enable_timing=True'")
        return (end.seconds - self.seconds) * 1000

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def wait(self, stream=None) -> None: ...


class Graph:
    """A CUDA graph whose kernels ran when they were captured."""

    def __init__(self, keep_graph: bool = False):
        self.captured = False

    def capture_begin(self, pool=None, capture_error_mode: str = "global", **_) -> None: ...

    def capture_end(self) -> None:
        self.captured = True

    def replay(self) -> None:
        """Raises RuntimeError as CUDA's graph does."""
        if not self.captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")


class Stream:
    """A stream whose work is done when it is asked for."""

    def __init__(self, device=None, priority: int = 0, stream_id: int = 0, device_index: int = 0, device_type: int = 1):
        self.stream_id, self.device_index, self.device_type = stream_id, device_index, device_type
        self.device = torch.device("cuda", device_index)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None: ...

    def wait_stream(self, stream) -> None: ...

    def wait_event(self, event) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event
