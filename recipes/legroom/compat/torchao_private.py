"""Private names of torchao's optimizers that this project uses, each with its reason. Imports no torchao itself."""

from typing import Any

import torch

SIGNED = "exp_avg"  # the state whose numbers have a sign; `step` of torchao's AdamW says so, too
STATES = ("exp_avg", "exp_avg_sq")  # of each weight, besides `step`
CODES, TABLE = "codes", "qmap"  # names of parts of a state: its numbers in few bits, and what all of them stand for


def makes_states(optimizer: Any) -> bool:
    """Whether an optimizer is one of torchao's, whose states are in few bits where a weight is large enough."""
    return hasattr(optimizer, "_subclass_zeros")


def new_state(optimizer: Any, weight: torch.Tensor, key: str) -> torch.Tensor:
    """A state of zeros of a weight, which may be sharded, as the optimizer's first step makes it.

    The optimizer's own `_new_buffer` makes it, so that no class is named in a checkpoint. Raises ValueError for a state
    that it does not have.
    """
    if key not in STATES:
        raise ValueError(f"{key} is no state of this optimizer")
    return optimizer._new_buffer(weight.detach(), key == SIGNED)


def zeros(optimizer: Any, shape: list[int], key: str) -> torch.Tensor:
    """A state of this shape in few bits, on the CPU."""
    return optimizer._subclass_zeros(torch.empty(shape), key == SIGNED, optimizer.block_size)


def block_size(state: Any) -> int:
    """How many numbers of a state in few bits have one scale. torchao's float8 does not keep it."""
    return state.numel() // state.scale.numel()


def numbers(state: Any) -> torch.Tensor:
    """The numbers that a state in few bits stands for, in fp32 and in its shape."""
    return state.dequantize(torch.float32).reshape(state.shape)
