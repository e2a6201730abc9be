"""Weights that bitsandbytes keeps in 4 or 8 bits, and the tensors beside them that say what their bits mean.

A layer in 4 bits has a packed weight, two numbers to a byte, and a state with its scales. The scales are neither
parameters nor buffers, so that `model.parameters()` and `model.buffers()` miss them. Experts in one tensor are a
parameter with a parametrisation, which has the scales.
"""

import math
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

SCALES = ("absmax", "code", "offset")  # tensors of a state


def layers(model: nn.Module) -> list[tuple[Any, nn.Parameter]]:
    """(layer, its weight) of the layers in 4 bits. Of a weight that FSDP has sharded, the layer has the scales."""
    found = []
    for layer in model.modules():
        weight = dict(layer.named_parameters(recurse=False)).get("weight")
        if vars(layer).get("quant_state") is not None and weight is not None:
            found.append((layer, weight))
    return found


def experts(model: nn.Module) -> list[ParametrizationList]:
    """The weights of experts in 4 or 8 bits: a module with the packed tensor, `original`, that gives the numbers."""
    return [module for module in model.modules() if is_quantised_experts(module)]


def is_quantised_experts(module: nn.Module) -> TypeGuard[ParametrizationList]:
    """Whether a module is a weight of experts that was quantised."""
    if not isinstance(module, ParametrizationList):
        return False
    first = vars(module[0])
    return first.get("quant_state") is not None or "SCB" in first


def count_experts(weight: ParametrizationList) -> int:
    """How many numbers a quantised weight of experts has."""
    state = vars(weight[0]).get("quant_state")
    return weight.original.numel() if state is None else math.prod(state.shape)


def states(model: nn.Module) -> list[Any]:
    """bitsandbytes' states of the weights in 4 bits, each once: a layer and its weight share one."""
    found: dict[int, Any] = {}
    for holder in (*model.modules(), *model.parameters()):
        state = vars(holder).get("quant_state")
        if state is not None and id(state) not in found:
            found[id(state)] = state
            if state.state2 is not None:  # of double quantisation: the scales of the scales
                found[id(state.state2)] = state.state2
    return list(found.values())


def scales(model: nn.Module) -> list[torch.Tensor]:
    """The tensors beside quantised weights that say what their bits mean."""
    values = []
    for state in states(model):
        values += [getattr(state, name) for name in SCALES]
    for module in model.modules():  # bitsandbytes moves those of 8 bits from the weight to the layer in its first use
        weight = dict(module.named_parameters(recurse=False)).get("weight")  # a parametrised weight is computed if read
        values.append(getattr(vars(module).get("state"), "SCB", None))
        values.append(getattr(weight, "SCB", None))
        values.append(vars(module).get("SCB"))  # of experts
    return [value for value in values if isinstance(value, torch.Tensor)]
