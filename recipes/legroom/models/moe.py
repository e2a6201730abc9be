"""Mixture of experts (MoE): the experts' matrix product under autocast, and its FLOPs.

transformers computes all experts in one grouped matrix product. Autocast does not cast its inputs (torch 2.13,
pytorch issue 174763), so `precision=bf16` would leave the experts, most of such a model, in fp32. torch's FLOP counter
has no formula for it either. `register` adds both.
Shapes: S pairs of a token and one of its experts, E experts, K inputs, N outputs.
"""

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula
from transformers import PretrainedConfig

from legroom.compat import transformers_models_private

NAME = "grouped_mm_autocast"  # the value of `experts_implementation`


class CastParameters:
    """A module whose parameters are read in another dtype."""

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype):
        self.module = module
        self.dtype = dtype

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        return value.to(self.dtype) if isinstance(value, torch.nn.Parameter) else value


def forward(
    module: torch.nn.Module, hidden: torch.Tensor, expert_indices: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The weighted sum of the experts' outputs, (tokens, K), as transformers' `grouped_mm` computes it.

    hidden: (tokens, K). expert_indices, weights: (tokens, experts per token), from the router.
    """
    device = hidden.device.type
    read: Any = module
    if torch.is_autocast_enabled(device):
        read = CastParameters(module, torch.get_autocast_dtype(device))
    return transformers_models_private.grouped_experts(read, hidden, expert_indices, weights)


def flops(rows: torch.Size, weights: torch.Size, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """FLOPs of a grouped product (S, K) x (E, K, N): each row is multiplied by the weights of one expert."""
    return 2 * rows[0] * rows[1] * weights[-1]


def gradient_flops(rows: torch.Size, weights: torch.Size, *_: Any, **__: Any) -> int:
    """FLOPs of the gradients of both factors of a grouped product."""
    return 2 * flops(rows, weights)


def has_experts(config: PretrainedConfig) -> bool:
    """Whether a model of this configuration has experts: families name their number differently."""
    return _names_experts(config.to_dict())


def _names_experts(values: dict[str, Any]) -> bool:
    """Whether a configuration, or a part of it, has a key about experts."""
    for key, value in values.items():
        if "experts" in str(key) and "implementation" not in str(key):
            return True
        if isinstance(value, dict) and _names_experts(value):
            return True
    return False


def register() -> str:
    """Adds `forward` to transformers and `flops` to torch's table. Returns the implementation's name."""
    transformers_models_private.register_experts(NAME, forward)
    formulas = dict.fromkeys(transformers_models_private.grouped_products(), flops)
    formulas[transformers_models_private.grouped_gradients()] = gradient_flops
    for operation, formula in formulas.items():
        if operation and operation not in flop_registry:  # a later torch may have a formula
            register_flop_formula(operation)(formula)
    return NAME
