"""optim.in_backward: each weight is updated as soon as its gradient is complete, and the gradient is freed.

Gradients of all weights never exist at once. What the step of a weight computes is what it computes after the backward
pass, so the losses are the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from legroom.estimator.ledger import outside_autograd
from legroom.levers.optim import optimizer, own_class
from legroom.options.hooks import Behaviour


class Apply(Behaviour):
    def check_model(self, name: str, architecture: Any, task: str) -> None:
        if self.cfg.optim.kind == "factory":
            own_class.check(self.cfg)

    def wrap_optimizer(self, optimizer: Optimizer) -> None:
        if self.cfg.optim.in_backward:
            StepsInBackward(optimizer)

    def warnings(self, model: Any) -> list[str]:
        return optimizer.warnings(self.cfg, model)


class StepsInBackward:
    """Registers a hook on every weight of an optimizer that takes the optimizer's step of this weight alone.

    optimizer: of any kind that updates each weight from its own gradient and state; `CombinedOptimizer` is. It stays
    the owner of groups and states, for schedules and checkpoints. Its own `step` afterwards finds no gradient.
    """

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer
        self._groups: Any = None  # `param_groups` as of the latest look; `load_state_dict` replaces them
        self._owners: dict[int, tuple[Any, dict[str, Any]]] = {}  # id of a weight -> optimizer and group
        self._step_of_one = self._narrowed
        if hasattr(optimizer, "update_step"):
            self._step_of_one = _step_of_bitsandbytes(optimizer)
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.register_post_accumulate_grad_hook(self._update)

    def _update(self, weight: torch.Tensor) -> None:
        with outside_autograd.updating(weight):
            self._step_of_one(weight)
        weight.grad = None

    def _narrowed(self, weight: torch.Tensor) -> None:
        """A step of the optimizer while this is its only weight."""
        if self._groups is not self.optimizer.param_groups:
            self._find_owners()
        optimizer, group = self._owners[id(weight)]
        groups, weights = optimizer.param_groups, group["params"]
        optimizer.param_groups, group["params"] = [group], [weight]
        try:
            optimizer.step()
        finally:
            optimizer.param_groups, group["params"] = groups, weights

    def _find_owners(self) -> None:
        self._groups = self.optimizer.param_groups
        self._owners = {
            id(weight): (optimizer, group)
            for optimizer in getattr(self.optimizer, "optimizers", [self.optimizer])
            for group in optimizer.param_groups
            for weight in group["params"]
        }


def _step_of_bitsandbytes(optimizer: Any) -> Callable[[torch.Tensor], None]:
    from legroom.compat import bitsandbytes_private  # imports bitsandbytes

    return bitsandbytes_private.step_of_one_weight(optimizer)
