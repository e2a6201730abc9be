"""The trace of a script on the played GPU, from its first allocation to the end of its second optimizer step.

Until the first step is over only storages are followed: the model and the optimizers show themselves by then. From one
step's end to the next is what every later step is like, and is replayed as such.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from legroom.foresight import places, user_step
from legroom.foresight.fake_gpu.op_trace import OpTrace
from legroom.foresight.programs import generated, played_processes, weights
from legroom.foresight.programs.called import CalledModules
from legroom.foresight.programs.played_code import Decisions
from legroom.foresight.programs.played_device import PlayedDevice
from legroom.foresight.programs.steps import Watch
from legroom.third_party import torch_private


class ProgramTrace:
    """Follows a script. fake: on which it runs."""

    def __init__(self, fake: PlayedDevice):
        self.fake = fake
        self.trace = OpTrace(fake, nn.ModuleList(), user_step.optimizer_of(None))
        self.called = CalledModules(self._begins)
        self._evaluates_first = False  # it evaluates before its first step: then it may do so in every one

    @contextlib.contextmanager
    def following(self, watch: Watch, decisions: Decisions, ranks: int, ended: Callable[[Any], None]) -> Iterator[None]:
        """Inside, a script is followed until `watch` stops it. ended: is called with the optimizers after its last
        step, when the trace has its end."""

        def stepped(number: int, optimizers: list) -> None:
            self._step_is_over(optimizers)
            if number == watch.limit:
                ended(optimizers)
            if number != watch.limit:
                self.trace.__enter__()

        watch.on_step.append(stepped)
        compiled = torch_private.uncompiled(lambda: self._note(user_step.AS_WRITTEN))
        starts = played_processes.first_followed(ranks, self._note)
        try:
            with (
                user_step.explained(),
                self.fake,
                starts,
                weights.by_shape(self._note),
                torch_private.truncated_at_once(),
                generated.to_the_end(decisions),
                compiled,
            ):
                self.trace.__enter__()
                yield
        finally:
            self.called.remove()

    def _note(self, text: str) -> None:
        self.fake.warnings[text] = None

    def _begins(self, module: nn.Module) -> None:
        """A forward pass begins. One from which trained weights learn nothing is an evaluation's."""
        trace, learns = self.trace, module.training or torch.is_grad_enabled()
        evaluates = not learns and any(weight.requires_grad for weight in module.parameters())
        self._evaluates_first |= evaluates and trace.origins is None
        trace.aside = evaluates and not self._evaluates_first
        if evaluates and trace.origins is not None:
            line = places.own_line(inspect.currentframe())
            self._note(f"{line}: an evaluation after the first step is {'not ' * trace.aside}in its time.")
        trace.log.phase.begin_forward()

    def _step_is_over(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """From here on is the next, of a model that is known."""
        self.trace.__exit__(None, None, None)
        if self.trace.origins is None:
            model = self.called.model(optimizers)
            self.trace = OpTrace(self.fake, model, user_step.optimizer_of(optimizers), True, self.trace)
