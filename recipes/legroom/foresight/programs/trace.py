"""The trace of a script on the played GPU, from its first allocation to the end of its second optimizer step.

Until the first step is over only storages are followed: the model and the optimizers show themselves by then. From one
step's end to the next is what every later step is like, and is replayed as such.
"""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from legroom.errors import Refusal
from legroom.foresight import simulation, user_step
from legroom.foresight.fake_gpu.device import FakeDevice
from legroom.foresight.fake_gpu.op_trace import OpTrace


class NoOptimizer:
    """Stands for the optimizers until they are known."""

    param_groups: list[dict[str, Any]] = []
    state: Mapping[Any, Any] = {}

    def register_step_pre_hook(self, _: Callable) -> Any:
        return torch.utils.hooks.RemovableHandle(OrderedDict())


class ProgramTrace:
    """Follows a script. `start` before it begins, `stepped` after each optimizer step, `end` after the last."""

    def __init__(self, fake: FakeDevice):
        self.fake = fake
        self.trace = OpTrace(fake, nn.ModuleList(), NoOptimizer())  # pyright: ignore[reportArgumentType]
        self.roots: dict[int, weakref.ref] = {}  # modules that were called by the script itself
        self._depth = 0
        self._hooks = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
        ]

    def start(self) -> None:
        self.trace.__enter__()

    def _enter(self, module: nn.Module, _: Any) -> None:
        if not self._depth:
            self.roots[id(module)] = weakref.ref(module)
            if self.trace.log.phase.current() != "backward":
                self.trace.log.phase.begin_forward()
        self._depth += 1

    def _leave(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def stepped(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """An optimizer step is over: from here on is the next."""
        self.trace.__exit__(None, None, None)
        if self.trace.origins is None:
            self.trace = OpTrace(
                self.fake, self._model(optimizers), user_step.optimizer_of(optimizers), True, self.trace
            )
        self.trace.__enter__()

    def end(self) -> None:
        """The last step is over."""
        self.trace.__exit__(None, None, None)
        if self.trace.origins is None:
            raise Refusal("one step was followed, and the second is like every later one.")
        self.leave()

    def leave(self) -> None:
        """Look at modules no more, however the script has ended."""
        for hook in self._hooks:
            hook.remove()

    def _model(self, optimizers: list[torch.optim.Optimizer]) -> nn.Module:
        """The modules that were called: those with the parameters that are trained first."""
        trained = {id(weight) for each in optimizers for group in each.param_groups for weight in group["params"]}
        called = [module for root in self.roots.values() if (module := root()) is not None]
        found = [module for module in called if next(module.parameters(), None) is not None]
        covered = {id(weight) for module in found for weight in module.parameters()}
        if not trained <= covered:  # parameters of modules whose forward method was called by itself
            for module in (each for each in gc.get_objects() if isinstance(each, nn.Module)):
                own = {id(weight) for weight in module.parameters(recurse=False)}
                if own & trained - covered:
                    found.append(module)
                    covered |= own
        if not found:
            raise Refusal("the optimizer's step was followed, and no module has a parameter.")
        found = [one for one in found if not any(one is not other and one in set(other.modules()) for other in found)]
        return user_step.model_of(found)


def demand_events(trace: OpTrace) -> list[tuple[int, int]]:
    """The requests of the whole way, and of the last step as often as it takes until nothing new is reserved."""
    return trace.allocator_events(simulation.REPEATS)
