"""experts: the matrix products of a mixture of experts, such that autocast and the ledger hold for them too.

transformers gives all experts to one grouped product of torch. Autocast does not know that product
(torch 2.13, pytorch issue 174763), so `precision=bf16` would leave the experts, which are most of such a
model, in 32 bits without a word; and torch's table of FLOPs does not have it. Both are mended here.
Shapes: S the pairs of a token and one of its experts, E experts, K inputs, N outputs.
"""

from __future__ import annotations

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula
from transformers.integrations import moe

NAME = "grouped_mm_autocast"  # what `experts_implementation` is set to


class Cast:
    """A module of experts whose weights are read in another dtype."""

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype):
        self.module, self.dtype = module, dtype

    def __getattr__(self, name: str):
        value = getattr(self.module, name)
        return value.to(self.dtype) if isinstance(value, torch.nn.Parameter) else value


def forward(module, hidden, expert_of, weight_of):
    """The experts' outputs, weighted and summed: (tokens, K), as transformers' `grouped_mm` gives them.

    hidden: (tokens, K). expert_of, weight_of: (tokens, experts a token), from the router.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        module = Cast(module, torch.get_autocast_dtype(device))
    return moe.grouped_mm_experts_forward(module, hidden, expert_of, weight_of)


def flops(rows, weights, *_, out_shape=None, **__) -> int:
    """FLOPs of a grouped product (S, K) x (E, K, N): each row meets the weights of one expert."""
    return 2 * rows[0] * rows[1] * weights[-1]


def register() -> str:
    """Make `forward` known to transformers, and the FLOPs to torch's table. Returns the implementation's name."""
    moe.ALL_EXPERTS_FUNCTIONS.register(NAME, forward)
    for product in (torch.ops.aten._grouped_mm, torch.ops.transformers.grouped_mm_fallback):
        if product not in flop_registry:  # a later torch may know it
            register_flop_formula(product)(flops)
    return NAME
