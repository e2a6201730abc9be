"""checkpointing: recompute activations in the backward pass rather than keep them."""

from __future__ import annotations

SETTINGS = {"use_reentrant": False}  # works with every wrapper, and lets outer saved-tensor hooks see the inputs


def arguments(cfg) -> dict:
    """Entries for TrainingArguments, under the name that this transformers has for them."""
    if cfg.checkpointing.name == "none":
        return {}
    from transformers import TrainingArguments

    new = "activation_checkpointing" in TrainingArguments.__dataclass_fields__  # since 5.2x; the old name leaves in 6
    name = "activation_checkpointing" if new else "gradient_checkpointing"
    return {name: True, f"{name}_kwargs": SETTINGS}


def apply(cfg, model) -> None:
    """Switch it on in a transformers model, for a recipe that has no Trainer to do it."""
    if cfg.checkpointing.name == "full":
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable(SETTINGS)
