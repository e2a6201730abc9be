"""optim: the optimizer's settings, and which optimizers take less memory."""

from __future__ import annotations

from typing import Any

from recipes.config import Config
from recipes.options import hooks
from recipes.options.hooks import STEP, Cost, Dimension, Lever

FUSED = ("adamw", "adamw_fused")


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    optim = cfg.optim
    args = {"momentum": optim.momentum} | (optim.args or {})
    entries = {
        "optim": optim.transformers_name,
        "adam_beta1": optim.beta1,
        "adam_beta2": optim.beta2,
        "adam_epsilon": optim.epsilon,
        "optim_args": ",".join(f"{key}={value}" for key, value in args.items() if value is not None) or None,
    }
    return {key: value for key, value in entries.items() if value is not None}


def memory_levers(cfg: Config) -> list[Lever]:
    """Optimizers with smaller states, or with smaller temporaries in the step."""
    name, mode = cfg.optim.name, cfg.parallelism.name
    whole_weights = mode in ("single", "dp", "ddp")  # 8-bit optimizers work on no others
    fused = name == "adamw" and mode != "fsdp_tp"
    in_8_bits = name in ("adamw", "adamw_fused") and whole_weights
    levers = [
        # The fused kernel has no temporary copy of all weights.
        Lever("optim=adamw_fused", Cost.NO_SPEED if fused else None, (STEP,), {"optim": "adamw_fused"}),
        Lever("optim=adafactor", changes={"optim": "adafactor"}),
        Lever("optim=adam8bit", Cost.LOW_PRECISION_STATES if in_8_bits else None, changes={"optim": "adam8bit"}),
    ]
    return [lever for lever in levers if lever.changes["optim"] != name]


def not_tried(cfg: Config) -> str | None:
    """Why `fit` leaves an optimizer out."""
    if cfg.optim.facts.pages_to_host:
        return "what paging costs differs by machine, from a fifth to nearly all of the rate of the link to the host"
    if cfg.optim.facts.not_searched:
        return "it trains differently at the same learning rate. fit does not choose it; typed, it is kept"
    return None


def alike(cfg: Config) -> tuple[str, ...]:
    """The optimizers that compute what the chosen one does, in other kernels."""
    return FUSED if cfg.optim.name in FUSED else ()


HOOKS = hooks.register(
    "optim",
    hooks.Hooks(
        training_arguments=training_arguments,
        memory_levers=memory_levers,
        search=(Dimension("optim", 40, changes_numbers=True, alike=alike, not_tried=not_tried),),
    ),
)
