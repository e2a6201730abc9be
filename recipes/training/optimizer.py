"""The optimizer, by its name in transformers' table, the same for both recipes.

`Trainer.create_optimizer` does the work, so that every optimizer of that table is available: optimizers of parameter
groups, of the whole model (LOMO), of their own groups (GaLore, APOLLO), one per parameter (layer-wise), and factories.
An optimizer that the table lacks is one entry in FACTORIES.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from transformers import Trainer, TrainingArguments

from recipes.config import Config
from recipes.third_party.transformers_trainer_private import OptimizerBuilder

Factory = Callable[[TrainingArguments, torch.nn.Module], Optimizer]
FACTORIES: dict[str, Factory] = {}
"""Option of the menu `optim` -> its factory, for an optimizer that transformers' table lacks."""


def build_optimizer(cfg: Config, args: TrainingArguments, model: torch.nn.Module) -> Optimizer:
    """The optimizer of a model's trainable parameters.

    Biases and norms have no weight decay; 8-bit optimizers keep the states of embeddings in 32 bits.
    args: the class and its settings are transformers' for `args.optim`, unless FACTORIES has the option.
    """
    factory = FACTORIES.get(cfg.optim.name)
    if factory is not None:
        return factory(args, model)
    optimizer = Trainer.create_optimizer(OptimizerBuilder(args, model, _before_construction))
    # transformers keeps a group without parameters; DeepSpeed cannot partition one.
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
    return optimizer


def _before_construction(optimizer_class: Any) -> None:
    if str(getattr(optimizer_class, "__module__", "")).startswith("bitsandbytes"):
        from recipes.third_party import bitsandbytes_private  # imports bitsandbytes

        bitsandbytes_private.clear_overrides()


class CombinedOptimizer(Optimizer):
    """Several optimizers as one, for a factory that gives different parameters to different optimizers.

    Learning-rate schedules, gradient scaling and checkpoints see all parameter groups and states in one place.
    """

    def __init__(self, optimizers: Sequence[Optimizer]):
        self.optimizers = list(optimizers)
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Lets the inner optimizers work on the groups and states of this one."""
        groups = iter(self.param_groups)
        for optimizer in self.optimizers:
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`, which replaces the groups and the states."""
        super().__setstate__(state)
        self.state = defaultdict(dict, self.state)
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of each optimizer. closure: not supported, as in most optimizers of several steps."""
        assert closure is None, "CombinedOptimizer takes no closure"
        for optimizer in self.optimizers:
            optimizer.step()
        return None
