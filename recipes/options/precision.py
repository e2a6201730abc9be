"""precision: the floating-point types of the weights and of the arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recipes.config import Config
from recipes.machine import host
from recipes.options import hooks
from recipes.options.hooks import PASSES, STEP, Cost, Dimension, Lever

if TYPE_CHECKING:
    import torch

AUTOCAST = {"fp16": "fp16", "bf16": "bf16"}  # option -> Accelerate's mixed_precision


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    return {
        "fp16": cfg.precision.name == "fp16",
        "bf16": cfg.precision.name == "bf16",
        "tf32": cfg.precision.name == "tf32" if host.device(cfg) == "cuda" else None,
    }


def memory_levers(cfg: Config) -> list[Lever]:
    """Smaller types: autocast for the activations, bf16 weights for the rest too."""
    name, gpu = cfg.precision.name, host.gpu(cfg)
    has_bf16 = gpu is None or gpu.capability >= (8, 0)
    wide = name in ("fp32", "tf32")
    costs = {
        "fp16": Cost.NO_SPEED if wide and not has_bf16 else None,
        "bf16": Cost.NO_SPEED if wide and has_bf16 else None,
        "bf16_pure": Cost.LOW_PRECISION_WEIGHTS if has_bf16 else None,
    }
    return [
        Lever(f"precision={option}", cost, (STEP,) if option == "bf16_pure" else (PASSES,), {"precision": option})
        for option, cost in costs.items()
        if option != name
    ]


def apply_tf32(cfg: Config) -> None:
    """Sets whether matrix units may use TF32. Called after Accelerate is built, which turns TF32 on with compile."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = cfg.precision.name == "tf32"


def weights_dtype(cfg: Config) -> torch.dtype:
    """The type in which the model's weights are kept."""
    import torch

    return torch.bfloat16 if cfg.precision.name == "bf16_pure" else torch.float32


HOOKS = hooks.register(
    "precision",
    hooks.Hooks(
        training_arguments=training_arguments,
        memory_levers=memory_levers,
        search=(Dimension("precision", 10, changes_numbers=True),),
    ),
)
