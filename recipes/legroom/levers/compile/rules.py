"""compile: torch.compile, through Accelerate in both recipes."""

import shutil
from collections.abc import Collection
from typing import Any

from legroom.config import Config
from legroom.machine import host
from legroom.options import hooks
from legroom.options.hooks import Conflict

# Modes with CUDA graphs (reduce-overhead, max-autotune) are no option: a graph overwrites its loss in the next pass,
# and the losses of many steps are read together.
DEFAULT = "default"


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    return {"torch_compile": True, "torch_compile_mode": cfg.compile_mode or DEFAULT} if cfg.compile else {}


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Keys that are not used, and the compilers that torch.compile calls."""
    if not cfg.compile:
        unused = sorted({"compile_mode", "compile_regions"} & set(given))
        return [f"{key} is not used with compile=false. Type compile=true, or leave it out." for key in unused]
    return [] if cfg.predicts else _compiler_problems(cfg)


def _compiler_problems(cfg: Config) -> list[str]:
    if cfg.target.on_gpu:
        return gpu_problems("compile=true", "leave compile out")
    if not host.compiler():
        return ["compile=true needs a C++ compiler on a CPU (g++ or clang++): install one, or leave compile out."]
    return []


def gpu_problems(option: str, instead: str) -> list[str]:
    """What is missing to compile for a GPU. option, instead: as the line names them."""
    if not host.has("triton"):
        return [f"{option} needs the package triton on a GPU: pip install triton, or {instead}."]
    if not (shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")):
        return [f"{option} needs a C compiler for triton (gcc): install one, or {instead}."]
    return []


CONFLICTS = (
    Conflict(
        "compile_regions=true",
        "parallelism=dp,fsdp,fsdp_tp,zero",
        instead="Choose parallelism=ddp, or leave compile_regions out.",
    ),
)

NOT_SEARCHED = "the time of compiled code has a wide interval"


def chosen(cfg: Config) -> bool:
    return cfg.compile


hooks.register_module("compile", globals())
