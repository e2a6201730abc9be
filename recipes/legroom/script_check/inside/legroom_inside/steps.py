"""The optimizer steps of a script that knows nothing of us."""

from __future__ import annotations

import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from legroom_inside import places

PATIENCE = 10  # steps of one optimizer, after which another one that has taken none is not waited for


class Steps:
    """Counts optimizer steps. A step is over when every optimizer has stepped once more: with a generator and a
    discriminator, after both. before: called with an optimizer that is about to step. over: called with the number of
    steps when one is over. Accumulation steps are none."""

    def __init__(self, before, over):
        self.before = before
        self.over = over
        self.done = 0
        self.line = ""
        self._reached = 0
        self._built = weakref.WeakSet()
        self._counts = weakref.WeakKeyDictionary()
        self._engines = 0  # DeepSpeed's, whose one step is several of its inner optimizer
        build = torch.optim.Optimizer.__init__
        steps = self

        def built(optimizer, *args, **settings):
            build(optimizer, *args, **settings)
            steps._built.add(optimizer)

        torch.optim.Optimizer.__init__ = built
        register_optimizer_step_pre_hook(self._begin)
        register_optimizer_step_post_hook(self._after)

    @property
    def optimizers(self):
        """Those that have stepped, and those that were built and train."""
        optimizers = list(self._counts)
        for optimizer in self._built:
            if optimizer not in self._counts and _trains(optimizer):
                optimizers.append(optimizer)
        return optimizers

    def _begin(self, optimizer, args, kwargs):
        """Called before a step. A closure is a forward and a backward pass, behind which the step begins once more;
        returns the step's arguments with one in its place."""
        self.before(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return None

        def passes():
            loss = closure()
            self.before(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], passes, *args[2:]), kwargs
        return args, dict(kwargs, closure=passes)

    def _after(self, optimizer, *_):
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self.line = places.own_line() or self.line
        if self._engines:
            return
        furthest = max(self._counts.values())
        reached = furthest
        for optimizer in {*self._counts, *self._built}:
            count = self._counts.get(optimizer, 0)
            if _trains(optimizer) and count + PATIENCE > furthest:
                reached = min(reached, count)
        if reached > self._reached:
            self._reached = reached
            self._one_more()

    def _one_more(self):
        self.done += 1
        self.over(self.done)

    def of_deepspeed(self, engine_class):
        """One step of DeepSpeed's engine is one step, however many its inner optimizer takes."""
        steps = self
        step = engine_class.step

        def engine_step(engine, *args, **settings):
            steps._engines += 1
            before = engine.global_steps
            result = step(engine, *args, **settings)
            if engine.global_steps > before:
                steps._one_more()
            return result

        engine_class.step = engine_step


def _trains(optimizer):
    return any(weight.requires_grad for group in optimizer.param_groups for weight in group["params"])
