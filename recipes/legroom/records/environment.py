"""Describe the machine and the software that a job runs with, without importing torch."""

import functools
import os
import platform
import subprocess
from typing import Any

import psutil

from legroom import paths
from legroom.config import Config
from legroom.machine import host

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "bitsandbytes",
    "deepspeed",
    "hydra-core",
    "omegaconf",
    "wandb",
)
# The variables that a record may contain: they change speed or memory, and none of them holds a secret.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NCCL_P2P_DISABLE",
    "TOKENIZERS_PARALLELISM",
    "TORCHINDUCTOR_CACHE_DIR",
)


def collect_environment(cfg: Config) -> dict[str, Any]:
    """Versions, hardware, git revision and the variables in VARIABLES: the record's `environment`."""
    gpu = cfg.target.gpu
    if gpu is not None:
        return of_device(cfg.target.device, gpu.name, gpu.memory_bytes)
    return of_device(cfg.target.device, host.cpu_name(), psutil.virtual_memory().total)


def of_device(device: str, name: str, memory_bytes: int) -> dict[str, Any]:
    """The same for a device that is known."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        versions[package] = host.version(package)
    return {
        "versions": versions,
        "device": device,
        "device_name": name,
        "device_memory_bytes": memory_bytes,
        "cpu": host.cpu_name(),
        "cpu_cores": host.usable_cores(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "git_revision": git_revision(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


@functools.cache
def git_revision() -> str | None:
    """The checkout's commit, with '+changes' where tracked files differ from it; None outside a git checkout.

    As it was when the process first asked, which is nearer to the code that it has imported.
    """

    if paths.CHECKOUT is None:  # a repository around site-packages is somebody else's
        return None
    try:
        revision = _git("rev-parse", "--short=12", "HEAD")
        if _git("status", "--porcelain", "-uno"):
            revision += "+changes"
    except (OSError, subprocess.SubprocessError):
        return None
    return revision


def _git(*arguments: str) -> str:
    """What git prints of the checkout. Raises OSError or subprocess.SubprocessError."""
    command = ["git", "-C", str(paths.CHECKOUT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
