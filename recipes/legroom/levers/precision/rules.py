"""precision: the floating-point types of the weights and of the arithmetic."""

from collections.abc import Collection
from typing import Any

from legroom.config import Config
from legroom.options import hooks, model_families
from legroom.options.hooks import PASSES, STEP, Conflict, Cost, Dimension, Lever


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    return {
        "fp16": cfg.precision.kind == "fp16",
        "bf16": cfg.precision.autocast == "bf16",
        "tf32": cfg.precision.kind == "tf32" if cfg.target.on_gpu else None,
    }


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Models without linear layers for 8-bit products."""
    if cfg.precision.kind != "fp8":
        return []
    if cfg.model.family not in model_families.NOT_LINEAR:
        return []
    return [
        f"precision=fp8 is for linear layers, and the matrices of model={cfg.model.name} are in layers of another "
        "kind. Choose precision=bf16."
    ]


def warnings(cfg: Config) -> list[str]:
    """The casts to 8 bits take longer than the products save, unless they are compiled into other kernels."""
    if cfg.precision.kind != "fp8" or cfg.compile:
        return []
    return ["precision=fp8 is slower than bf16 as long as its casts are kernels of their own. Type compile=true."]


def memory_levers(cfg: Config) -> list[Lever]:
    """Smaller types: autocast for the activations, bf16 weights for the rest too."""
    kind, gpu = cfg.precision.kind, cfg.target.gpu
    has_bf16 = gpu is None or gpu.capability >= (8, 0)
    wide = kind in ("fp32", "tf32")
    costs = {
        "fp16": Cost.LOW_PRECISION_PRODUCTS if wide and not has_bf16 else None,
        "bf16": Cost.LOW_PRECISION_PRODUCTS if wide and has_bf16 else None,
        "bf16_pure": Cost.LOW_PRECISION_WEIGHTS if has_bf16 else None,
    }
    weights = (PASSES, STEP) if cfg.adapter.is_used else (STEP,)  # frozen ones are most of what is held at any time
    return [
        Lever(f"precision={option}", cost, weights if option == "bf16_pure" else (PASSES,))
        for option, cost in costs.items()
        if option != kind
    ]


CONFLICTS = (
    Conflict("precision=fp8", "parallelism=dp,fsdp,fsdp_tp,zero", " yet", "Choose parallelism=ddp, or precision=bf16."),
    Conflict(
        "checkpointing=selective",
        "precision=fp8",
        ", whose products are of tensors of its own kind",
        "Choose checkpointing=full.",
    ),
)

TIMES = "the estimate does not know the times of 8-bit products"
SEARCH = (Dimension("precision", 10, None, True, not_tried=lambda cfg: TIMES if cfg.precision.kind == "fp8" else None),)


def chosen(cfg: Config) -> bool:
    return True


hooks.register_module("precision", globals())
