"""Plays NVIDIA GPUs on a machine without one: whole commands and workers run the lines that only a GPU reaches.

`environment(count)` has the variables with which any Python process starts with that many cards: NVML answers for
them, torch says that it is built for CUDA, and `torch.cuda` runs as it is over made-up answers of its C functions
(played_driver.py). Tensors stay on the CPU and say that they are on the current device (played_cuda.py).
NCCL is gloo.

What it cannot show: tensors of two devices in one operation, a copy that is missing or too many (a move to the card
returns the same tensor), work that nobody has waited for, the kernels, times and memory of a GPU (the figures below
are made up), CUDA's random numbers, triton and with it torch.compile, NCCL's errors.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

SUPPORT = Path(__file__).parent
VARIABLE = "LEGROOM_PLAYED_GPUS"
MIB = 2**20
NAME, CAPABILITY, TOTAL_BYTES = "NVIDIA L4", (8, 9), 23_654_825_984
IDLE_BYTES, CONTEXT_BYTES, WORKSPACE_BYTES, CACHED_BYTES = 3 * MIB, 300 * MIB, 64 * MIB, 20 * MIB


def uuid(index: int) -> str:
    return f"GPU-played-{index}"


def environment(count: int = 1) -> dict[str, str]:
    """Variables for a process that sees `count` cards, and for those that it starts."""
    path = [SUPPORT / "played_gpu_site", SUPPORT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {VARIABLE: str(count), "PYTHONPATH": os.pathsep.join(map(str, path))}


class Cards:
    """The cards as this process sees and uses them. A test's code changes these in a worker."""

    def __init__(self, count: int):
        self.count = count
        self.opened_by: int | None = None  # the process that created the context
        self._thread = threading.local()
        self.moved_bytes = 0  # what was moved to the card or made there; nothing is taken back
        self.fraction = 1.0  # of the memory that torch may use
        self.idle_bytes, self.other_processes = IDLE_BYTES, []  # of other programs

    def visible(self) -> list[int]:
        """The cards that CUDA_VISIBLE_DEVICES shows, in its order."""
        words = os.environ.get("CUDA_VISIBLE_DEVICES")
        if words is None:
            return list(range(self.count))
        known = {word: index for index in range(self.count) for word in (str(index), uuid(index))}
        return [known[word.strip()] for word in words.split(",") if word.strip() in known]

    @property
    def current(self) -> int:
        """The current device, which each thread has of its own."""
        return getattr(self._thread, "device", 0)

    @current.setter
    def current(self, index: int) -> None:
        self._thread.device = index

    @property
    def is_open(self) -> bool:
        return self.opened_by == os.getpid()

    @property
    def allocated_bytes(self) -> int:
        return (self.moved_bytes + WORKSPACE_BYTES) * self.is_open

    @property
    def reserved_bytes(self) -> int:
        return (self.allocated_bytes + CACHED_BYTES) * self.is_open

    @property
    def used_bytes(self) -> int:
        """What NVML shows."""
        return self.idle_bytes + (CONTEXT_BYTES + self.reserved_bytes) * self.is_open

    def take(self, size: int) -> None:
        """Note that a tensor has come to the card. Raises torch.OutOfMemoryError."""
        if self.moved_bytes + size > self.fraction * TOTAL_BYTES:
            raise self.out_of_memory(size)
        self.moved_bytes += size

    def out_of_memory(self, size: int) -> Exception:
        """The error of torch 2.13, in its words."""
        import torch

        free = max(0, int(self.fraction * TOTAL_BYTES) - self.moved_bytes)
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB. GPU {self.current} has a total capacity of "
            f"{TOTAL_BYTES / 2**30:.2f} GiB of which {free / MIB:.2f} MiB is free. Including non-PyTorch memory, this "
            f"process has {self.used_bytes / MIB:.2f} MiB memory in use. Of the allocated memory "
            f"{self.allocated_bytes / MIB:.2f} MiB is allocated by PyTorch, and {CACHED_BYTES / MIB:.2f} MiB is "
            "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
        )


CARDS = Cards(int(os.environ.get(VARIABLE, "0")))


def nvml(cards: Cards = CARDS):
    """NVML with the cards."""
    from fake_nvml_module import FakeNvml, gpu

    def memory(version: int | None = None) -> SimpleNamespace:
        kept = 0 if version else 700 * MIB  # the first version counts what the driver keeps for itself as in use
        return SimpleNamespace(total=TOTAL_BYTES, used=cards.used_bytes + kept)

    def processes() -> list[SimpleNamespace]:
        pids = cards.other_processes + ([cards.opened_by] if cards.is_open else [])
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in pids]

    facts = dict(Name=NAME, CudaComputeCapability=CAPABILITY, MemoryInfo=memory, ComputeRunningProcesses=processes)
    return FakeNvml(*[gpu(index, UUID=uuid(index), **facts) for index in range(cards.count)])


def install() -> None:
    """Give this interpreter the cards, before it has imported anything."""
    sys.modules["pynvml"] = nvml()
    _AFTER["torch"] = lambda torch: _cuda().play(torch)
    _AFTER["bitsandbytes"] = lambda _: _cuda().play_bitsandbytes()
    _AFTER["safetensors.torch"] = lambda safetensors: _cuda().play_safetensors(safetensors)
    _AFTER["legroom.estimator.ledger.storage_log"] = lambda module: _cuda().play_storage_log(module)
    _AFTER["legroom.machine.host"] = lambda host: setattr(host, "torch_has_cuda", lambda: True)
    sys.meta_path.insert(0, _AfterImport())


def _cuda() -> ModuleType:
    import played_cuda

    return played_cuda


_AFTER: dict[str, Callable[[ModuleType], object]] = {}  # module -> what is called when it has been imported


class _AfterImport:
    """Calls the functions of _AFTER."""

    def find_spec(self, name, path=None, target=None):
        if name not in _AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(self.execute, spec.loader.exec_module, name)
        return spec

    def execute(self, execute, name, module):
        with _cuda_hidden(name == "bitsandbytes"):
            execute(module)
        _AFTER[name](module)


class _cuda_hidden:
    """Inside, torch is a CPU build: bitsandbytes would load its CUDA library, which needs the driver's."""

    def __init__(self, hidden: bool):
        self.hidden = hidden

    def __enter__(self):
        if self.hidden:
            torch = sys.modules["torch"]
            self.before = torch.version.cuda, torch.cuda.is_available
            torch.version.cuda, torch.cuda.is_available = None, lambda: False

    def __exit__(self, *_):
        if self.hidden:
            torch = sys.modules["torch"]
            torch.version.cuda, torch.cuda.is_available = self.before
