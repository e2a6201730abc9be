"""Attention within the samples of a packed row, and none across them.

Position ids alone do not keep samples apart in every model, so an explicit mask does. It is made once for a forward
pass, in the type that attention computes in, and all layers share it. B rows, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from recipes.config import Config
from recipes.errors import Refusal
from recipes.options import data
from recipes.third_party import transformers_models_private

# Families that compute the same logits for a packed sample as for it alone, as
# tests/models/test_packed_attention.py proves.
FAMILIES = (
    "gemma",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "starcoder2",
)
MASKED = ("sdpa", "eager")
LAYERS = {"full_attention", "sliding_attention"}


def check(cfg: Config, name: str, config: PretrainedConfig, task: str) -> None:
    """Raises Refusal for a model that cannot train on packed rows. name: of the model, as it was typed."""
    if task == "classification":
        raise Refusal(data.PACKED_CLASSIFIER)
    text = config.get_text_config()
    if config.model_type not in FAMILIES:
        raise Refusal(
            f"data.packing=true is not supported for {name} ({config.model_type}): that packed samples do not "
            f"see each other is known for {', '.join(FAMILIES)}. Type data.packing=false."
        )
    window = getattr(text, "sliding_window", None)
    if not set(getattr(text, "layer_types", None) or ()) <= LAYERS or (window and window < cfg.data.seq_len):
        raise Refusal(
            f"data.packing=true is not supported for attention within a window, which {name} has (sliding_window="
            f"{window}). Type data.seq_len={window} or less, or data.packing=false."
        )
    if getattr(text, "output_router_logits", False):
        raise Refusal(
            f"data.packing=true is not supported with the routers' loss of {name} (output_router_logits), which counts "
            "padding by a mask of another form. Type data.packing=false."
        )


def keep_samples_apart(model: PreTrainedModel) -> None:
    """Give the model's layers a mask whenever position ids come in. Raises Refusal for attention that takes none."""
    attention = transformers_models_private.attention_of(model)
    if attention not in MASKED:
        raise Refusal(
            f"data.packing=true needs a mask, which {attention} does not take. Type model.attention=sdpa, or "
            "data.packing=false."
        )
    # Inside the model's forward pass, where autocast is on.
    model.base_model.register_forward_pre_hook(_add_mask, with_kwargs=True)


def _add_mask(model: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    positions = kwargs.get("position_ids")
    if positions is None:  # rows that are not packed, as in an evaluation
        return None
    device = positions.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else model.dtype
    return args, kwargs | {"attention_mask": mask(positions, dtype)}


def mask(positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores of attention, (B, 1, T, T): 0 within a sample up to the token itself, else the least
    number. positions (B, T): 0 begins a sample."""
    sample = (positions == 0).cumsum(1)
    length = positions.shape[1]
    hidden = torch.ones(length, length, dtype=torch.bool, device=positions.device).triu(1)
    hidden = hidden | (sample[:, :, None] != sample[:, None, :])
    added = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return added.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]
