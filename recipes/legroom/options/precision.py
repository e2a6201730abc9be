"""precision: the floating-point types of the weights and of the arithmetic."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from legroom.config import Config
from legroom.machine import host
from legroom.options import hooks, model_families
from legroom.options.hooks import PASSES, STEP, Cost, Dimension, Lever

if TYPE_CHECKING:
    from torch import nn

WHOLE_WEIGHTS = (None, "single", "ddp")  # modes that precision=fp8 goes with; doctor asks about no mode


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    return {
        "fp16": cfg.precision.name == "fp16",
        "bf16": cfg.precision.autocast == "bf16",
        "tf32": cfg.precision.name == "tf32" if host.device(cfg) == "cuda" else None,
    }


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """What does not go with 8-bit products."""
    if cfg.precision.name != "fp8":
        return []
    found = []
    if cfg.adapter.is_used:
        found.append(
            f"precision=fp8 does not go with adapter={cfg.adapter.name}, whose layers stand in for the linear ones. "
            "Choose precision=bf16."
        )
    if cfg.parallelism.name not in WHOLE_WEIGHTS:
        found.append(
            f"precision=fp8 does not go with parallelism={cfg.parallelism.name} yet. Choose parallelism=ddp, or "
            "precision=bf16."
        )
    if cfg.checkpointing.name == "selective":
        found.append(
            "checkpointing=selective does not go with precision=fp8, whose products are of tensors of its own kind. "
            "Choose checkpointing=full."
        )
    if cfg.model.family in model_families.NOT_LINEAR:
        found.append(
            f"precision=fp8 is for linear layers, and the matrices of model={cfg.model.name} are in layers of another "
            "kind. Choose precision=bf16."
        )
    return found


def warnings(cfg: Config) -> list[str]:
    """The casts to 8 bits take longer than the products save, unless they are compiled into other kernels."""
    if cfg.precision.name != "fp8" or cfg.compile:
        return []
    return ["precision=fp8 is slower than bf16 as long as its casts are kernels of their own. Type compile=true."]


def transform_model(cfg: Config, model: nn.Module) -> nn.Module:
    """The model with linear layers of torchao in place of its own, but for the first and the last, as Accelerate's
    fp8 has it. Raises Refusal for a model without any."""
    if cfg.precision.name != "fp8":
        return model
    from accelerate.utils import ao
    from torchao.float8 import Float8LinearConfig

    from legroom.errors import Refusal

    # pad_inner_dim: torch's product of 8-bit floats needs multiples of 16, also of the tokens
    ao.convert_model_to_fp8_ao(model, Float8LinearConfig(pad_inner_dim=True))
    if not ao.has_ao_layers(model):
        raise Refusal(
            f"precision=fp8: {type(model).__name__} has no linear layers between the first and the last whose sizes "
            "are multiples of 16. Choose precision=bf16."
        )
    return model


def not_tried(cfg: Config) -> str | None:
    """Why `fit` leaves an option out."""
    return "the estimate does not know the times of 8-bit products" if cfg.precision.name == "fp8" else None


def memory_levers(cfg: Config) -> list[Lever]:
    """Smaller types: autocast for the activations, bf16 weights for the rest too."""
    name, gpu = cfg.precision.name, host.gpu(cfg)
    has_bf16 = gpu is None or gpu.capability >= (8, 0)
    wide = name in ("fp32", "tf32")
    costs = {
        "fp16": Cost.LOW_PRECISION_PRODUCTS if wide and not has_bf16 else None,
        "bf16": Cost.LOW_PRECISION_PRODUCTS if wide and has_bf16 else None,
        "bf16_pure": Cost.LOW_PRECISION_WEIGHTS if has_bf16 else None,
    }
    return [
        Lever(f"precision={option}", cost, (STEP,) if option == "bf16_pure" else (PASSES,))
        for option, cost in costs.items()
        if option != name
    ]


def apply_tf32(cfg: Config) -> None:
    """Sets whether matrix units may use TF32. Called after Accelerate is built, which turns TF32 on with compile."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = cfg.precision.name == "tf32"


HOOKS = hooks.register(
    "precision",
    hooks.Hooks(
        problems=problems,
        warnings=warnings,
        training_arguments=training_arguments,
        transform_model=transform_model,
        memory_levers=memory_levers,
        search=(Dimension("precision", 10, changes_numbers=True, not_tried=not_tried),),
    ),
)
