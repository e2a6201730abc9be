"""The environment of a program that runs on the emulated device."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from legroom.emulated_gpu.build import LIBRARY, library
from legroom.emulated_gpu.card import Card

# What cudaRuntimeGetVersion answers: the newest of the major version that was looked at.
CUDA_VERSIONS = {12: 12080, 13: 13000}


def environment(card: Card, cuda_major: int, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with the device in front: LD_PRELOAD, LD_LIBRARY_PATH, PATH (for nvidia-smi), and the card's variables.

    cuda_major: 12 or 13, that of the build of torch (`torch.version.cuda`). CUDA_VISIBLE_DEVICES stays as it is, and is
    obeyed. Raises BuildError if the device cannot be built.
    """
    folder = library(cuda_major)
    result = {name: value for name, value in base.items() if not name.startswith("LEGROOM_GPU_") or _is_setting(name)}
    result |= card.environment()
    result["LEGROOM_GPU_PYTHON"] = sys.executable  # which runs nvidia-smi
    result.setdefault("LEGROOM_GPU_CUDA_VERSION", str(CUDA_VERSIONS[cuda_major]))
    result["LD_PRELOAD"] = _in_front(str(folder / LIBRARY), base.get("LD_PRELOAD"), ":")
    result["LD_LIBRARY_PATH"] = _in_front(str(folder), base.get("LD_LIBRARY_PATH"), ":")
    result["PATH"] = _in_front(str(folder / "bin"), base.get("PATH"), ":")
    result["TRITON_LIBCUDA_PATH"] = str(folder)
    return result


# Variables of the device that are not the card's, and that a caller may set.
SETTINGS = (
    "LOG",
    "REMEMBERED_LAUNCHES",
    "CUDA_VERSION",
    "CUDNN_VERSION",
    "DRIVER_VERSION",
    "BINARY_VERSION",
    "WATCHDOG_SECONDS",
)


def _is_setting(name: str) -> bool:
    return name.removeprefix("LEGROOM_GPU_") in SETTINGS


def _in_front(first: str, others: str | None, separator: str) -> str:
    """`first` and then `others`, in which it does not stand again."""
    rest = [other for other in (others or "").split(separator) if other and other != first]
    return separator.join([first, *rest])
