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
        vars(self).update({key: each for key, each in vars(like).items() if isinstance(each, str | int | float)})

    def forward(self, given: Any, *_: Any, **__: Any) -> Any:
        return given


class NoEmbedding(Passing):
    """Stands for embeddings of another rank: zeros that take no memory."""

    def __init__(self, like: nn.Module, width: int, dtype: torch.dtype):
        super().__init__(like)
        self.width, self.dtype = width, dtype

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
    found = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.ModuleList)]
    return max(found, key=lambda each: len(each[1]))


def around(model: PreTrainedModel, path: str) -> tuple[list[str], list[str]]:
    """Names of the modules with weights before and behind the layers, by transformers' plan where the model has one,
    or by their order. path: the name of the layers."""
    parent, _, layers = path.rpartition(".")
    plan = transformers_models_private.pipeline_plan(model)
    children = dict(model.get_submodule(parent).named_children())
    beside = [name for name, each in children.items() if name == layers or name in plan or _has_weights(each)]
    order = plan if set(plan) == {*beside} else beside
    place = order.index(layers)
    outside = [
        name for name, each in model.named_children() if _has_weights(each) and not f"{path}.".startswith(f"{name}.")
    ]
    prefix = f"{parent}." if parent else ""
    return [prefix + name for name in order[:place]], [prefix + name for name in order[place + 1 :]] + outside


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())
