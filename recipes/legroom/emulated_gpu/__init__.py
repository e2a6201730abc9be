"""A CUDA device that is not there, on which an unmodified CUDA build of torch runs (Linux).

    card = Card(name="NVIDIA L4", capability="8.9", multiprocessors=58, memory_bytes=23_580_639_232)
    environment(card, 13, os.environ)

gives the variables with which to start a program: `LD_PRELOAD` puts a small library, built from `device/`, in front of
NVIDIA's own, which need not be installed. It answers the public interfaces of CUDA's runtime and driver, NVML, NCCL,
cuBLAS and its kin, and cuDNN. Device memory is address space with a capacity, and launches do nothing, so everything
above the device is real: torch's allocator, its choice of kernels, its out-of-memory error. Numbers are not: what is
read back is zero, except for small copies that were made shortly before.

This package imports nothing of Legroom and no third party's library.
"""

from legroom.emulated_gpu.build import BuildError, library
from legroom.emulated_gpu.card import Card
from legroom.emulated_gpu.counters import Counters, counters
from legroom.emulated_gpu.launch import environment

__all__ = ["BuildError", "Card", "Counters", "counters", "environment", "library"]
