"""compile: torch.compile, through Accelerate in both recipes."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from typing import Any

from recipes.config import Config
from recipes.machine import host
from recipes.options import hooks


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    return {"torch_compile": True} if cfg.compile else {}


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """The compilers that torch.compile calls."""
    if not cfg.compile or cfg.recipe.name == "estimate":
        return []
    if host.device(cfg) == "cuda":
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


HOOKS = hooks.register(
    "compile",
    hooks.Hooks(
        problems=problems,
        training_arguments=training_arguments,
        not_searched="the time of compiled code has a wide interval",
    ),
)
