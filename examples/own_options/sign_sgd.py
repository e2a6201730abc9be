"""SignSGD (Bernstein et al. 2018, arXiv 1802.04434), as an example of an optimizer of one's own."""

import torch


class SignSGD(torch.optim.Optimizer):
    """Moves each weight by the learning rate, against the sign of its gradient.

    dampening: how much of the gradient itself is used in place of its sign, 0 to 1.
    """

    def __init__(self, params, lr=1e-3, weight_decay=0.0, dampening=0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "dampening": dampening})

    @torch.no_grad()
    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(weight.grad.sign(), alpha=-group["lr"] * (1 - group["dampening"]))
                weight.add_(weight.grad, alpha=-group["lr"] * group["dampening"])
