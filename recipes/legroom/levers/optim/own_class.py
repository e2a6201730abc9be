"""kind: factory: an optimizer of a person's own class, from a file or an installed package."""

import importlib
from typing import Any

import torch
from torch.optim import Optimizer

from legroom.config import Config
from legroom.errors import Refusal
from legroom.models import own_code


def check(cfg: Config) -> None:
    """Builds the optimizer for a weight of one number, before data and model are read, which may take long.

    Raises Refusal where the class cannot be imported, is no optimizer, or does not take what its option gives it.
    """
    weight = torch.nn.Parameter(torch.zeros(1))
    build(cfg, [{"params": [weight], "weight_decay": cfg.train.weight_decay}], cfg.train.learning_rate or 0.0)


def build(cfg: Config, groups: list[dict[str, Any]], learning_rate: float) -> Optimizer:
    """The optimizer for parameter groups with their own weight decay. Raises Refusal as `check` does."""
    option, factory = f"optim={cfg.optim.name}", str(cfg.optim.factory)
    optimizer_class = _imported(option, factory)
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        raise Refusal(f"{option}: factory: {factory} is no subclass of torch.optim.Optimizer.")
    construct: Any = optimizer_class
    try:
        return construct(groups, lr=learning_rate, **_arguments(cfg))
    except (TypeError, ValueError) as error:
        raise Refusal(f"{option}: {factory} does not take the arguments of its option: {error}") from error


def _arguments(cfg: Config) -> dict[str, Any]:
    """What the option gives to the class beside the groups and the learning rate, by torch's names."""
    arguments = dict(cfg.optim.args or {})
    if cfg.optim.beta1 is not None and cfg.optim.beta2 is not None:
        arguments["betas"] = (cfg.optim.beta1, cfg.optim.beta2)
    if cfg.optim.epsilon is not None:
        arguments["eps"] = cfg.optim.epsilon
    if cfg.optim.momentum is not None:
        arguments["momentum"] = cfg.optim.momentum
    return arguments


def _imported(option: str, factory: str) -> Any:
    """What `file.py:Class` or `package.module.Class` names. Raises Refusal where it cannot be imported."""
    file, colon, name = factory.rpartition(":")
    try:
        if colon:
            return getattr(own_code.load(file), name)
        package, _, name = factory.rpartition(".")
        return getattr(importlib.import_module(package), name)
    except Exception as error:  # whatever a person's own file raises
        raise Refusal(f"{option}: factory: {factory} cannot be imported: {type(error).__name__}: {error}") from error
