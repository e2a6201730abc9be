"""How ranks share weights that bitsandbytes keeps in 4 bits."""

import torch
import torch.distributed as dist
from torch import nn

from legroom.errors import Refusal
from legroom.estimator.ledger.quantised import SCALES, layers, states


def as_floats(model: nn.Module, dtype: torch.dtype) -> None:
    """Makes the weights in 4 bits plain parameters whose bytes are read as numbers of a floating type, in place: what
    FSDP shards, and does not cast if the type is that of the computation. In its forward pass bitsandbytes takes such a
    weight, once it is gathered, with the scales of its layer.

    Raises Refusal for a weight of an odd number of bytes.
    """
    for layer, weight in layers(model):
        if weight.dtype != torch.uint8:
            continue
        if weight.numel() % dtype.itemsize:
            raise Refusal(
                f"adapter.bits=4 does not go with sharding for this model: a layer of {layer.out_features} x "
                f"{layer.in_features} has an odd number of bytes in 4 bits. Choose parallelism=ddp."
            )
        numbers = weight.data.view(-1).view(dtype).unsqueeze(1)
        layer.weight = nn.Parameter(numbers, requires_grad=False)


def scales_from_rank_0(model: nn.Module, source: nn.Module | None, device: str) -> None:
    """Gives every rank the scales of the weights in 4 bits, on a device. source: the whole model, on rank 0 alone."""
    for state, origin in zip(states(model), states(source or model), strict=True):
        for name in SCALES:
            value = getattr(origin, name)
            if value is None:
                continue
            if source is not None:
                value = value.to(device)
            else:
                value = torch.empty_like(value, device=device)
            dist.broadcast(value, src=0)
            setattr(state, name, value)
