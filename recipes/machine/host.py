"""What this machine has, found without importing torch: the parent asks before anything is started."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML names it. `capability` is (major, minor); `memory_bytes` the whole device's."""

    uuid: str
    name: str
    memory_bytes: int
    capability: tuple[int, int]


def version(package: str) -> str | None:
    """A package's installed version without importing it, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def has(module: str) -> bool:
    """Whether a top-level module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def torch_has_cuda() -> bool:
    """Whether the installed torch is a CUDA build: its CUDA library lies beside it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return False
    library = Path(spec.submodule_search_locations[0], "lib")
    return any(library.glob("libtorch_cuda.*")) or any(library.glob("torch_cuda.dll"))


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """The GPUs that a job may use, in the order in which CUDA numbers them for it.

    Empty without a driver, without a CUDA build of torch, or where CUDA_VISIBLE_DEVICES hides them.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1") or not torch_has_cuda() or not has("pynvml"):
        return ()
    import pynvml

    try:
        pynvml.nvmlInit()
        return query_nvml()
    except pynvml.NVMLError:  # no driver, or a device that does not tell what we must know
        return ()


def query_nvml() -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES lets through, in its order. Raises NVMLError where one does not tell."""
    import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    everything = [_gpu(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    if visible is None:
        return tuple(everything)
    chosen = []
    for word in (w.strip() for w in visible.split(",")):
        match = [g for i, g in enumerate(everything) if str(i) == word or (word and g.uuid.startswith(word))]
        if not match and word.startswith("MIG-"):  # a slice of a GPU has a handle of its own
            match = [_gpu(pynvml.nvmlDeviceGetHandleByUUID(word))]
        if not match:  # CUDA, too, stops at the first name that it does not know
            break
        chosen.append(match[0])
    return tuple(chosen)


def _gpu(handle) -> Gpu:
    import pynvml

    uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    whole = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if uuid.startswith("MIG-") else handle
    return Gpu(
        uuid=uuid,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=_total_bytes(handle),
        capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(whole)),
    )


def _total_bytes(handle) -> int:
    """The device's memory; the host's, where they are one and NVML does not tell."""
    import psutil
    import pynvml

    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError_NotSupported:
        return psutil.virtual_memory().total


def nvml_handle():
    """NVML's handle of the GPU that a job runs on: the first visible one."""
    import pynvml

    return pynvml.nvmlDeviceGetHandleByUUID(gpus()[0].uuid)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def gpu(cfg) -> Gpu | None:
    """The GPU that a configuration is for: the one it predicts, or the one at hand. None where it is for a CPU."""
    if device(cfg) == "cpu":
        return None
    if cfg.recipe.name == "estimate":
        if cfg.gpu.memory_bytes is None:  # gpu=auto, and there is none
            return None
        return Gpu("", cfg.gpu.device_name, cfg.gpu.memory_bytes, tuple(map(int, cfg.gpu.capability.split("."))))
    return gpus()[0] if gpus() else None


def device(cfg) -> str:
    """'cuda' or 'cpu': what `cfg.device` comes to on this machine, or in an estimate on any."""
    if cfg.recipe.name == "estimate" and cfg.device != "cpu":
        return "cuda"
    if cfg.device == "auto":
        return "cuda" if gpus() else "cpu"
    return cfg.device


def compiler() -> str | None:
    """The C++ compiler that torch.compile would call on a CPU, or None."""
    return next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), "c++", "g++", "clang++"])), None)


def cpu_name() -> str:
    """The processor's name as the system prints it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: platform knows a name too
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
