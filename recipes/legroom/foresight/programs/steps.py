"""The optimizer steps of a script that knows nothing of us: how many there were, where, and when to stop."""

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from legroom.errors import Refusal
from legroom.foresight.places import own_line
from legroom.third_party.patching import patched

PATIENCE = 10  # steps of one optimizer, after which another one that has taken none is not waited for
MOST_SKIPPED = 30  # steps in a row that a gradient scaler leaves out


class Watch:
    """Counts the optimizer steps of everything that runs inside `watching()`.

    A step is over when every optimizer has stepped once more: with a generator and a discriminator, after both. One
    that was built and never steps is waited for PATIENCE steps of the others. Steps of a closure, or of a wrapper by
    Accelerate, Lightning or the Trainer, are those of the optimizer below; accumulation steps are none.

    limit: after that many steps, `enough` is called, which does not return.
    """

    def __init__(self, limit: int | None, enough: Callable[[], NoReturn]):
        self.limit, self.enough = limit, enough
        self.before_step: list[Callable[[torch.optim.Optimizer], None]] = []  # called before an optimizer's step
        self.on_step: list[Callable[[int, list[torch.optim.Optimizer]], None]] = []  # after the last one's: its number
        self.done = 0
        self.skipped = 0  # by gradient scalers, which found infinities
        self.line = ""  # file:line of the script, of the last step
        self._built: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._counts: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._skipped_in_a_row = 0
        self._reached = 0  # steps of every optimizer that is waited for

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Observe all optimizers that are built or step inside."""
        build, scaled = torch.optim.Optimizer.__init__, torch.amp.GradScaler.step
        watch = self

        def built(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            build(optimizer, *args, **kwargs)
            watch._built.add(optimizer)

        def step(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
            before = sum(watch._counts.values())
            result = scaled(scaler, *args, **kwargs)
            watch._after_scaler(sum(watch._counts.values()) > before)
            return result

        with contextlib.ExitStack() as hooks:
            hooks.enter_context(patched(torch.optim.Optimizer, __init__=built))
            hooks.enter_context(patched(torch.amp.GradScaler, step=step))
            hooks.callback(register_optimizer_step_pre_hook(self._before).remove)
            hooks.callback(register_optimizer_step_post_hook(self._after).remove)
            yield

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that have stepped, in the order of their first step."""
        return list(self._counts)

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for call in self.before_step:
            call(optimizer)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self.line = own_line(inspect.currentframe()) or self.line
        furthest = max(self._counts.values())
        waited = {one: self._counts.get(one, 0) for one in {*self._counts, *self._built} if _trains(one)}
        reached = min((count for count in waited.values() if count + PATIENCE > furthest), default=furthest)
        if reached > self._reached:  # by more than one where an optimizer was waited for in vain
            self._reached, self.done = reached, self.done + 1
            for call in self.on_step:
                call(self.done, self.optimizers)
        if self.limit is not None and self.done >= self.limit:
            self.enough()

    def _after_scaler(self, stepped: bool) -> None:
        if stepped:
            self._skipped_in_a_row = 0
            return
        self.skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row > MOST_SKIPPED:
            raise Refusal(
                f"the gradient scaler has left out {self._skipped_in_a_row} steps in a row: the gradients are infinite."
            )


def _trains(optimizer: torch.optim.Optimizer) -> bool:
    return any(weight.requires_grad for group in optimizer.param_groups for weight in group["params"])
