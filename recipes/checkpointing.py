"""checkpointing: recompute activations in the backward pass rather than keep them."""

from __future__ import annotations


def arguments(cfg) -> dict:
    """Entries for TrainingArguments. Non-reentrant: it works with every wrapper and saves no random state twice."""
    return {"gradient_checkpointing": cfg.checkpointing.name == "full",
            "gradient_checkpointing_kwargs": {"use_reentrant": False}}


def apply(cfg, model) -> None:
    """Switch it on in a transformers model, for a recipe that has no Trainer to do it."""
    if cfg.checkpointing.name == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
