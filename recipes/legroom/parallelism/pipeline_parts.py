"""The modules of a rank of a pipeline: those of its parts, and cheap ones that stand for those of the other ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from legroom.compat import transformers_models_private


class Passing(nn.Module):
    """Stands for a module of another rank: returns what it is given. like: has the attributes that the model reads."""

    def __init__(self, like: nn.Module):
        super().__init__()
        for name, value in vars(like).items():
            if isinstance(value, str | int | float):
                setattr(self, name, value)

    def forward(self, given: Any, *_: Any, **__: Any) -> Any:
        return given


class NoEmbedding(Passing):
    """Stands for embeddings of another rank: zeros that take no memory."""

    def __init__(self, like: nn.Module, width: int, dtype: torch.dtype):
        super().__init__(like)
        self.width = width
        self.dtype = dtype

    def forward(self, given: Tensor, *_: Any, **__: Any) -> Tensor:
        if given.is_floating_point():
            return given
        return torch.zeros((), dtype=self.dtype, device=given.device).expand(*given.shape, self.width)


class Received(Passing):
    """Stands for the layer before a rank's first: returns the hidden states that were sent."""

    hidden: Tensor | None = None

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.hidden


class Part(nn.Module):
    """A part of the model as torch's schedules call it. run(given, batch)."""

    def __init__(self, run: Callable[..., Tensor]):
        super().__init__()
        self.run = run

    def forward(self, given: Tensor, **batch: Tensor) -> Tensor:
        return self.run(given, batch)


def layers_of(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The layers, which are the longest ModuleList, and their name."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=lambda named: len(named[1]))


def around(model: PreTrainedModel, path: str) -> tuple[list[str], list[str]]:
    """Names of the modules with weights before and behind the layers, by transformers' plan where it names them all,
    or else by their order. path: the name of the layers."""
    parent, _, layers = path.rpartition(".")
    prefix = f"{parent}." if parent else ""
    plan = transformers_models_private.pipeline_plan(model)
    order = []
    for name, module in model.get_submodule(parent).named_children():
        if name == layers or name in plan or _has_weights(module):
            order.append(name)
    if set(plan) == set(order):
        order = plan
    place = order.index(layers)
    before = [prefix + name for name in order[:place]]
    after = [prefix + name for name in order[place + 1 :]]
    for name, module in model.named_children():
        if _has_weights(module) and not path.startswith(f"{name}.") and path != name:
            after.append(name)
    return before, after


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
