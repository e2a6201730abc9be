"""compile: torch.compile, through Accelerate in both recipes."""

from __future__ import annotations

import shutil

from recipes.machine import host


def arguments(cfg) -> dict:
    """Entries for TrainingArguments."""
    return {"torch_compile": True} if cfg.compile else {}


def problems(cfg) -> list[str]:
    """The compiler that torch.compile calls on this machine."""
    if not cfg.compile or cfg.recipe.name == "estimate":
        return []
    if host.device(cfg) == "cuda":
        if not host.has("triton"):
            return ["compile=true needs the package triton on a GPU: pip install triton, or leave compile out."]
        if not (shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")):
            return ["compile=true needs a C compiler for triton (gcc): install one, or leave compile out."]
    elif not host.compiler():
        return ["compile=true needs a C++ compiler on a CPU (g++ or clang++): install one, or leave compile out."]
    return []
