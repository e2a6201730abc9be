"""What train.ema does: after each step, mean = decay * mean + (1 - decay) * weight, of every trained weight.

The mean of a weight is a state of its optimizer, `ema`: it is sharded, saved, restored and counted as the others are.
It is in fp32, also of weights in 16 bits, in which a hundredth of a step would be rounded away. Its first value is that
of the weight after the first step, as of torch.optim.swa_utils.AveragedModel.
"""

from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from legroom.compat.torch_private import local_tensor
from legroom.options.hooks import Behaviour

EMA = "ema"


class Apply(Behaviour):
    def wrap_optimizer(self, optimizer: Optimizer) -> None:
        assert self.cfg.train.ema is not None, "chosen"
        RunningMean(optimizer, self.cfg.train.ema)


class RunningMean:
    """Gives an optimizer the running mean of its weights, and `eval`, which puts the mean into the weights.

    Who calls `eval` keeps the weights and gives them back (`unwrap.evaluation_weights`), so `train` has nothing to do.
    """

    def __init__(self, optimizer: Any, decay: float):
        self.optimizer = optimizer
        self.average = get_ema_multi_avg_fn(decay)
        optimizer.register_step_post_hook(self._update)
        optimizer.eval = self._show
        optimizer.train = lambda: None

    @torch.no_grad()
    def _update(self, *_: Any) -> None:
        means, weights = [], []  # of the same type, which one kernel takes
        for weight, state in self._states():
            if EMA not in state:
                if weight.grad is not None:  # no state otherwise: optimizers make theirs where there is none
                    state[EMA] = weight.detach().to(torch.float32, copy=True)
                continue
            mean, value = local_tensor(state[EMA]), local_tensor(weight.detach())
            if mean.dtype == value.dtype:
                means.append(mean)
                weights.append(value)
            else:  # one at a time: the copies in fp32 are temporary
                self.average([mean], [value.float()], 0)
        if means:
            self.average(means, weights, 0)

    @torch.no_grad()
    def _show(self) -> None:
        for weight, state in self._states():
            if EMA in state:
                local_tensor(weight.detach()).copy_(local_tensor(state[EMA]))

    def _states(self) -> list[tuple[torch.Tensor, dict[str, Any]]]:
        groups = self.optimizer.param_groups
        return [(weight, self.optimizer.state[weight]) for group in groups for weight in group["params"]]
