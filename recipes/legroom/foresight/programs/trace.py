"""The trace of a script on the played GPU, from its first allocation to the end of its second optimizer step.

Until the first step is over only storages are followed: the model and the optimizers show themselves by then. From one
step's end to the next is what every later step is like, and is replayed as such.
"""

from __future__ import annotations

import torch
from torch import nn

from legroom.errors import Refusal
from legroom.foresight import user_step
from legroom.foresight.fake_gpu.device import FakeDevice
from legroom.foresight.fake_gpu.op_trace import OpTrace
from legroom.foresight.programs.called import CalledModules, NoOptimizer


class ProgramTrace:
    """Follows a script. `start` before it begins, `stepped` after each optimizer step, `end` after the last."""

    def __init__(self, fake: FakeDevice):
        self.fake = fake
        self.trace = OpTrace(fake, nn.ModuleList(), NoOptimizer())  # pyright: ignore[reportArgumentType]
        self.called = CalledModules(self._forward_begins)

    def start(self) -> None:
        self.trace.__enter__()

    def _forward_begins(self) -> None:
        phase = self.trace.log.phase
        if phase.current() != "backward":
            phase.begin_forward()

    def stepped(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """An optimizer step is over: from here on is the next."""
        self.trace.__exit__(None, None, None)
        if self.trace.origins is None:
            model = self.called.model(optimizers)
            self.trace = OpTrace(self.fake, model, user_step.optimizer_of(optimizers), True, self.trace)
        self.trace.__enter__()

    def end(self) -> None:
        """The last step is over."""
        self.trace.__exit__(None, None, None)
        if self.trace.origins is None:
            raise Refusal("one step was followed, and the second is like every later one.")
        self.leave()

    def leave(self) -> None:
        """Look at modules no more, however the script has ended."""
        self.called.remove()
