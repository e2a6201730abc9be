"""checkpointing: recompute activations in the backward pass instead of keeping them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from recipes.config import Config
from recipes.options import hooks
from recipes.options.hooks import PASSES, Cost, Dimension, Lever

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Works with every wrapper, and outer saved-tensor hooks (the memory ledger's) see the layers' inputs.
SETTINGS = {"use_reentrant": False}


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments, under the name that the installed transformers has for them."""
    if cfg.checkpointing.name == "none":
        return {}
    from transformers import TrainingArguments

    new = "activation_checkpointing" in {
        field.name for field in dataclasses.fields(TrainingArguments)
    }  # the old name is deprecated
    name = "activation_checkpointing" if new else "gradient_checkpointing"
    return {name: True, f"{name}_kwargs": SETTINGS}


def apply(cfg: Config, model: PreTrainedModel) -> None:
    """Switch it on in a transformers model, for a recipe without a Trainer."""
    if cfg.checkpointing.name == "full":
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable(SETTINGS)


def memory_levers(cfg: Config) -> list[Lever]:
    """Recomputation: a second forward pass in place of the kept activations."""
    if cfg.checkpointing.name != "none":
        return []
    return [Lever("checkpointing=full", Cost.RECOMPUTATION, (PASSES,), {"checkpointing": "full"})]


HOOKS = hooks.register(
    "checkpointing",
    hooks.Hooks(
        training_arguments=training_arguments,
        memory_levers=memory_levers,
        search=(Dimension("checkpointing", 20),),
    ),
)
