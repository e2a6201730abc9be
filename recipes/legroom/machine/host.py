"""What this machine has, found without importing torch: GPUs, processor, compiler, installed packages."""

import contextlib
import functools
import importlib.util
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

from legroom.config import Config, from_dict
from legroom.config.target import Gpu, Target
from legroom.machine import cgroups, nvml


@functools.cache
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
    """Whether the installed torch is a CUDA build: whether its folder holds torch's CUDA library."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return False
    library = Path(spec.submodule_search_locations[0], "lib")
    return any(library.glob("libtorch_cuda.*")) or any(library.glob("torch_cuda.dll"))


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """The GPUs that a job may use, in the order in which CUDA numbers them for it.

    Empty without a driver, without a CUDA build of torch, or where CUDA_VISIBLE_DEVICES hides them. The answer is
    cached: call `gpus.cache_clear()` after a change of the variable.
    """
    if not cuda_is_possible():
        return ()
    return nvml.find_visible_gpus()


def cuda_is_possible() -> bool:
    """Whether torch is a CUDA build and CUDA_VISIBLE_DEVICES does not hide all GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return torch_has_cuda() and (visible is None or visible.strip() not in ("", "-1"))


def target(cfg: Config) -> Target:
    """What a configuration computes on here; an estimate may be for a GPU on any machine."""
    device = cfg.device
    if device == "auto":
        device = "cuda" if cfg.predicts or gpus() else "cpu"
    if device == "cpu":
        return Target(device, None)
    if cfg.predicts:
        if cfg.gpu.memory_bytes is None:  # gpu=auto on a machine without a GPU
            return Target("cuda", None)
        return Target("cuda", Gpu("", cfg.gpu.device_name, cfg.gpu.memory_bytes, cfg.gpu.compute_capability))
    return Target(device, gpus()[0] if gpus() else None)


def configuration(values: dict) -> Config:
    """The configuration that a record holds, with its target on this machine."""
    cfg = from_dict(values)
    cfg.target = target(cfg)
    return cfg


def compiler() -> str | None:
    """The path of the C++ compiler that torch.compile calls on a CPU, or None."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        path = shutil.which(name)
        if path:
            return path
    return None


def cpu_name() -> str:
    """The processor's name, from /proc/cpuinfo where there is one."""
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """The machine's memory, or the limit of a control group around this process; None without psutil."""
    return _memory()[0]


def free_memory_bytes() -> int | None:
    """What is free of the machine's memory, or below the limit of a control group; None without psutil."""
    return _memory()[1]


def _memory() -> tuple[int, int] | tuple[None, None]:
    """(all, free) bytes, with the limits of control groups."""
    try:
        import psutil
    except ImportError:
        return None, None
    whole = psutil.virtual_memory()
    limit, free = cgroups.tightest() or (whole.total, whole.available)
    return min(whole.total, limit), min(whole.available, free)


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
