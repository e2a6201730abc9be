"""The modules of a script, found while it runs."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from legroom.foresight import user_step


class CalledModules:
    """Notes the modules that a script calls itself, not those inside of them. begins: called with each before it is."""

    def __init__(self, begins: Callable[[nn.Module], None]):
        self.begins = begins
        self._roots: dict[int, weakref.ref[nn.Module]] = {}
        self._depth = 0
        self._hooks = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module: nn.Module, _: Any) -> None:
        if not self._depth:
            self._roots[id(module)] = weakref.ref(module)
            self.begins(module)
        self._depth += 1

    def _leave(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def model(self, optimizers: list[torch.optim.Optimizer]) -> nn.Module:
        """The called modules as one, with all that the optimizers train, bare parameters too."""
        trained = {id(weight) for each in optimizers for group in each.param_groups for weight in group["params"]}
        called = [module for root in self._roots.values() if (module := root()) is not None]
        found = [module for module in called if next(module.parameters(), None) is not None]
        covered = {id(weight) for module in found for weight in module.parameters()}
        if not trained <= covered:  # parameters of modules whose forward method was called by itself
            for module in (each for each in gc.get_objects() if issubclass(type(each), nn.Module)):
                own = {id(weight) for weight in module.parameters(recurse=False)}
                if own & trained - covered:
                    found.append(module)
                    covered |= own
        weights = (weight for each in optimizers for group in each.param_groups for weight in group["params"])
        bare = [weight for weight in weights if id(weight) not in covered]
        if bare:
            found.append(nn.ParameterList(bare))
        inner = {id(below) for one in found for below in list(one.modules())[1:]}
        return user_step.model_of([one for one in found if id(one) not in inner])
