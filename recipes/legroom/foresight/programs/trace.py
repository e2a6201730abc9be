"""The trace of a script on the played GPU, from its first allocation to the end of its second optimizer step.

Until the first step is over only storages are followed: the model and the optimizers show themselves by then. From one
step's end to the next is what every later step is like, and is replayed as such.
"""

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from legroom import units
from legroom.foresight import places, user_step
from legroom.foresight.fake_gpu.op_trace import OpTrace
from legroom.foresight.programs import generated, played_processes, weights
from legroom.foresight.programs.called import CalledModules
from legroom.foresight.programs.played_code import Decisions
from legroom.foresight.programs.played_device import PlayedDevice
from legroom.foresight.programs.steps import Watch
from legroom.measure.memory_attribution import ACTIVATION, OTHER
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
            self.trace.__exit__(None, None, None)
            if self.trace.origins is None:  # from here on is the next, of a model that is known
                model = self.called.model(optimizers)
                self.trace = OpTrace(self.fake, model, user_step.optimizer_of(optimizers), True, self.trace)
            if number == watch.limit:
                ended(optimizers)
            if number != watch.limit:
                self.trace.__enter__()

        watch.on_step.append(stepped)
        try:
            with (
                user_step.explained(),
                self.fake,
                played_processes.first_followed(ranks, self._note),
                weights.by_shape(self._note),
                torch_private.truncated_at_once(),
                generated.to_the_end(decisions),
                torch_private.uncompiled(lambda: self._note(user_step.AS_WRITTEN)),
            ):
                self.trace.__enter__()
                yield
        finally:
            self.called.remove()

    def _note(self, text: str) -> None:
        self.fake.warnings[text] = None

    def _begins(self, module: nn.Module) -> None:
        """A forward pass begins. One from which trained weights learn nothing is an evaluation's."""
        if not torch.is_grad_enabled() and next(module.parameters(), None) is None:  # a loss: of what was called before
            return self.trace.log.phase.begin_forward()
        learns = module.training or torch.is_grad_enabled()
        evaluates = not learns and any(weight.requires_grad for weight in module.parameters())
        self._evaluates_first |= evaluates and self.trace.origins is None
        self.trace.aside = evaluates and not self._evaluates_first
        if evaluates and self.trace.origins is not None:
            line = places.own_line(inspect.currentframe())
            self._note(f"{line}: an evaluation after the first step is {'not ' * self.trace.aside}in its time.")
        self.trace.log.phase.begin_forward()

    def note_growth(self) -> None:
        """Notes what the forward passes of the last step and of those before have left alive, where memory grows by
        it. A loss or outputs that a variable holds are there once; weights, states and copies of them are no pass's."""
        events, start = self.trace.log.events, self.trace.log.step_start
        seen, left = Counter(id(each) for each, _ in events), (Counter[int](), Counter[int]())
        for index, (each, _) in enumerate(events):
            if seen[id(each)] == 1 and each.phase == "forward" and each.kind in (ACTIVATION, OTHER):  # not freed
                left[index >= start][each.bytes] += 1
        grown = min(sum(sign * each.bytes for each, sign in events[start:]), sum((left[0] & left[1]).elements()))
        if grown > units.MIB:
            size, kept = units.size(grown), "what forward passes have made is kept on the GPU"
            self._note(f"memory grew by {size} in the last step: {kept}. In a list, that is so in every step.")
