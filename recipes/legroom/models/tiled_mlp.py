"""Feed-forward layers that run on a part of each row at a time (checkpointing.mlp_tiles).

What they compute for a token depends on that token alone, so the parts together are the whole. A part is computed
again in the backward pass, so that no more than one has its inner activations, which are a few times as wide as a
layer's. For long rows (Arctic Long Sequence Training, Bekman et al. 2025, arXiv 2506.13996).
Shapes: B rows, T tokens, D the width.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from legroom.compat import transformers_models_private
from legroom.errors import Refusal

NAMES = ("mlp", "feed_forward", "ffn")  # of a layer's feed-forward part, in transformers


def enable(model: nn.Module, tiles: int) -> None:
    """Have each feed-forward layer of a model run in so many parts. Raises Refusal for a model without any."""
    found = feed_forward_layers(model)
    if not found:
        raise Refusal(
            f"checkpointing.mlp_tiles={tiles}: {type(model).__name__} has no feed-forward layers that can run on a "
            "part of the tokens (those of experts and of BERT's family cannot). Leave it out."
        )
    for layer in found:
        layer.forward = functools.partial(_in_tiles, layer.forward, tiles)


def feed_forward_layers(model: nn.Module) -> list[nn.Module]:
    """The feed-forward parts of a model's layers that take hidden states alone, without those that have experts."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    found = []
    for layer in model.modules():
        if not isinstance(layer, GradientCheckpointingLayer):
            continue
        for name, part in layer.named_children():
            if name in NAMES and _takes_one_tensor(part) and not _has_experts(part):
                found.append(part)
    return found


def _takes_one_tensor(layer: nn.Module) -> bool:
    return len(inspect.signature(layer.forward).parameters) == 1


def _has_experts(layer: nn.Module) -> bool:
    """Whether a layer is a mixture: its router balances the tokens that it is given."""
    return any(transformers_models_private.is_experts(part) for part in layer.modules()) or hasattr(layer, "experts")


def _in_tiles(forward: Callable[[torch.Tensor], torch.Tensor], tiles: int, hidden: torch.Tensor) -> torch.Tensor:
    """forward(hidden), part by part along the tokens. hidden: (B, T, D)."""
    results: list[Any] = []
    for part in hidden.chunk(tiles, dim=1):
        results.append(checkpoint(_of_part, forward, part, use_reentrant=False))
    return torch.cat(results, dim=1)


def _of_part(forward: Callable[[torch.Tensor], torch.Tensor], part: torch.Tensor) -> torch.Tensor:
    return forward(part.contiguous())  # of several rows the parts have gaps, which GPT-2's layers cannot view
