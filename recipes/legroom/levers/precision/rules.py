"""precision: the floating-point types of the weights and of the arithmetic."""

from collections.abc import Collection
from typing import Any

from legroom.config import Config
from legroom.options import hooks, model_families
from legroom.options.hooks import PASSES, STEP, Conflict, Cost, Dimension, Lever


def resolve(cfg: Config) -> list[str]:
    """Fill in the types that the option leaves open, and leave out those of parts that the model does not have."""
    types = cfg.precision
    zero = cfg.parallelism.kind == "zero"
    if types.weights is None:
        types.weights = types.usual_weights
        if zero and types.kind == "bf16":  # DeepSpeed's own mode
            types.weights = "bf16"
    types.copies = None
    if zero and types.weights == "bf16":
        types.copies = "fp32"
    if not cfg.adapter.is_used:
        types.base = None
        types.adapter = None
        return []
    if types.base is None:  # frozen weights have the type of the products
        types.base = types.autocast or types.usual_weights
    if types.adapter is None:
        types.adapter = types.usual_weights
        if zero:
            types.adapter = types.weights
    return []


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    tf32 = None
    if cfg.target.on_gpu:
        tf32 = cfg.precision.kind == "tf32"
    return {
        "fp16": cfg.precision.kind == "fp16",
        # With fp32 copies it asks for DeepSpeed's bf16 mode, which is no autocast; an estimate has no DeepSpeed.
        "bf16": cfg.precision.autocast == "bf16" and not (cfg.predicts and cfg.precision.copies),
        "tf32": tf32,
    }


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Types that the arithmetic does not take, keys for an adapter without one, and models without linear layers for
    8-bit products."""
    return [*_type_problems(cfg, given), *_fp8_problems(cfg)]


def _type_problems(cfg: Config, given: Collection[str]) -> list[str]:
    types, found = cfg.precision, []
    for key in ("precision.base", "precision.adapter"):
        if key in given and not cfg.adapter.is_used:
            found.append(f"{key} is not used without an adapter. Type adapter=lora, or leave it out.")
    if types.reduction and not cfg.parallelism.sharded:
        mode = f"parallelism={cfg.parallelism.name}"
        instead = "Choose parallelism=fsdp"
        if cfg.parallelism.kind == "fsdp":
            mode = f"parallelism.strategy={cfg.parallelism.strategy}"
            instead = "Type parallelism.strategy=full_shard"
        found.append(
            f"precision.reduction is not used by {mode}, which adds up gradients in their own type. {instead}, or "
            "leave it out."
        )
    computes_in = types.autocast or "bf16"
    allowed = {computes_in}
    if types.autocast:  # which casts what is wider
        allowed.add("fp32")
    if types.kind in ("fp16", "bf16", "bf16_pure") and types.base is not None and types.base not in allowed:
        found.append(
            f"precision.base={types.base} does not go with precision={types.name}, which computes in {computes_in}. "
            f"Type precision.base={computes_in}."
        )
    if types.autocast == "fp16" and "bf16" in (types.weights, types.adapter):
        found.append(
            f"precision={types.name}: gradients in bf16 need no loss scaling. Type precision=bf16, or fp32 for "
            "precision.weights and precision.adapter."
        )
    return found


def _fp8_problems(cfg: Config) -> list[str]:
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
    costs: dict[str, Cost | None] = dict.fromkeys(("fp16", "bf16", "bf16_pure"))
    if wide and has_bf16:
        costs["bf16"] = Cost.LOW_PRECISION_PRODUCTS
    elif wide:
        costs["fp16"] = Cost.LOW_PRECISION_PRODUCTS
    if has_bf16:
        costs["bf16_pure"] = Cost.LOW_PRECISION_WEIGHTS
    parts = {"fp16": (PASSES,), "bf16": (PASSES,), "bf16_pure": (STEP,)}
    if cfg.adapter.is_used or cfg.parallelism.kind == "zero":  # weights of 16 bits are held at any time
        parts = dict.fromkeys(costs, (PASSES, STEP))
    return [Lever(f"precision={option}", cost, parts[option]) for option, cost in costs.items() if option != kind]


CONFLICTS = (
    Conflict("precision=fp8", "parallelism=dp,fsdp,fsdp_tp,zero", " yet", "Choose parallelism=ddp, or precision=bf16."),
    Conflict(
        "checkpointing=selective,selective_half",
        "precision=fp8",
        ", whose products are of tensors of its own kind",
        "Choose checkpointing=full.",
    ),
)


def not_tried(cfg: Config) -> str | None:
    """Why `fit` leaves a precision out."""
    if cfg.precision.kind == "fp8":
        return "the estimate does not know the times of 8-bit products"
    return None


SEARCH = (Dimension("precision", 10, None, True, not_tried=not_tried),)


def chosen(cfg: Config) -> bool:
    return True


hooks.register_module("precision", globals())
