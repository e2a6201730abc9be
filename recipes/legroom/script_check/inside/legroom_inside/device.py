"""The figures of the device: torch's allocator, and the counters of the emulated device."""

from __future__ import annotations

import ctypes
import os

import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"

COUNTERS = (
    *("launches", "library_launches", "graph_launches", "copies_to_device", "copies_to_host", "copies_on_device"),
    *("synchronisations", "used_bytes", "peak_bytes", "context_bytes", "total_bytes"),
)


def cards():
    """The numbers of the cards that torch's allocator may have used."""
    if not torch.cuda.is_initialized():
        return range(0)
    return range(torch.cuda.device_count())


def peaks(card):
    """The peaks of torch's allocator on a card since the last call of forget_peaks, what it has reserved now, in
    bytes, and how often it ran out of memory since the process began."""
    stats = torch.cuda.memory_stats(card)
    return {
        "allocated": stats.get("allocated_bytes.all.peak", 0),
        "reserved": stats.get("reserved_bytes.all.peak", 0),
        "reserved_now": stats.get("reserved_bytes.all.current", 0),
        "ooms": stats.get("num_ooms", 0),
    }


def forget_peaks():
    for card in cards():
        torch.cuda.reset_peak_memory_stats(card)


def counters(card=0):
    """What the emulated device has counted on a card, by name; None on another device (emulated_gpu/counters.py)."""
    try:
        read = ctypes.CDLL(None).legroom_gpu_counters
    except AttributeError:
        return None
    values = (ctypes.c_uint64 * len(COUNTERS))()
    read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    if read(card, values, ctypes.sizeof(values)) != 0:
        return None
    return dict(zip(COUNTERS, values))


class Launches:
    """Counts the kernels that the emulated device is given on all cards: all of them, and those by operations that are
    seen."""

    def __init__(self):
        read = getattr(ctypes.CDLL(None), "legroom_gpu_counters", None)
        self.is_counting = read is not None
        if self.is_counting:
            read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
        self._read = read
        self._value = (ctypes.c_uint64 * 3)()  # launches, library launches, replays of graphs
        self.seen = 0
        self.start()

    def _sums(self, length=3):
        sums = [0] * length
        card = 0
        while self._read(card, self._value, ctypes.sizeof(ctypes.c_uint64) * length) == 0:
            for index in range(length):
                sums[index] += self._value[index]
            card += 1
        return sums

    def total(self):
        """Since the process began."""
        if not self.is_counting or not torch.cuda.is_initialized():
            return 0
        return self._sums(1)[0]

    def start(self):
        """Begin to count a step."""
        self.seen = 0
        self._before = None
        if self.is_counting and torch.cuda.is_initialized():
            self._before = self._sums()

    def of_step(self):
        """all: since start, seen: of them by operations, graphs: replays. None where nothing is counted."""
        if self._before is None:
            return None
        launches, _, graphs = self._sums()
        return {"all": launches - self._before[0], "seen": self.seen, "graphs": graphs - self._before[2]}


def name():
    """The name of the device of a real run."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def type_of_real_run():
    """cuda where there is a GPU, else cpu. NVML is asked: CUDA reads CUDA_VISIBLE_DEVICES once, when it is asked first,
    and the script may set it later."""
    asks_nvml = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(asks_nvml)
    os.environ[asks_nvml] = "1"
    try:
        return "cuda" if torch.cuda.is_available() else "cpu"
    finally:
        if before is None:
            del os.environ[asks_nvml]
        else:
            os.environ[asks_nvml] = before


def hidden_by():
    """The value of CUDA_VISIBLE_DEVICES where the script has set it so that no card is left; otherwise None."""
    value = os.environ.get(VISIBLE)
    if value is None or torch.cuda.device_count() > 0:
        return None
    return value
