"""Private names of torchao's optimizers that this project uses, each with its reason. Imports no torchao itself."""

from typing import Any

import torch

from legroom.compat.torch_private import parts_of

SIGNED = "exp_avg"  # the state whose numbers have a sign; `step` of torchao's AdamW says so, too


def state_of_parts(optimizer: Any, weight: torch.Tensor, key: str, saved: dict[str, torch.Tensor]) -> torch.Tensor:
    """A state of a weight in few bits, put together from the parts that a checkpoint has saved.

    The optimizer's own `_new_buffer` makes it, so that no class is named in a checkpoint. Raises ValueError for parts
    that it does not have.
    """
    made = optimizer._new_buffer(weight.detach(), key == SIGNED)
    own = parts_of(made)
    if own.keys() != saved.keys():
        raise ValueError(f"the parts of {key} are not those of this optimizer")
    for name, part in own.items():
        if part.shape != saved[name].shape or part.dtype != saved[name].dtype:
            raise ValueError(f"{name} of {key} has another shape or type")
        part.copy_(saved[name])
    return made
