"""parallelism=zero, stages 1 and 2, with offload=optimizer on the fake device: the optimizer's step is the host's.

Written after DeepSpeed 0.19 (runtime/zero/stage_1_and_2.py), as zero.flat.
"""

from typing import Any

import torch
import torch.distributed as dist

from legroom.foresight.zero.flat import FlatRank, trained
from legroom.foresight.zero.steps import HOST


class OffloadedRank(FlatRank):
    """Gradients of this rank's weights are copied to the host one by one, through a buffer of the largest weight."""

    def __init__(self, *settings: Any):
        super().__init__(*settings)
        self.from_host = self.weights[0].new_zeros(max(weight.numel() for weight in self.weights))
        self.to_host = self.from_host.to(HOST, copy=True)
        self.gradients = [torch.zeros_like(group.master) for group in self.groups]
        # of the weights, for the way back
        self.copies = [torch.zeros_like(group.own, device=HOST) for group in self.groups]
        self.earlier: dict[torch.Tensor, torch.Tensor] = {}  # sums of gradients, on the host
        self.micro_batch = 0

    def _kept_elements(self, rank: int) -> int:
        """Of the largest part, whose norm is computed in fp64."""
        parts = [part for group in self.optimizer.param_groups for part in self.parts(trained(group), rank)]
        return max((size for *_, size in parts), default=0)

    def backward(self, loss: torch.Tensor, **settings: Any) -> None:
        """In the place of `accelerator.backward`."""
        if self.from_host.device != HOST:  # there before the first step, and counted once it is used
            self.from_host.zero_()
        super().backward(loss, **settings)

    def _master(self, own: torch.Tensor) -> torch.Tensor:
        return own.clone().to(HOST, copy=True).float()

    def _keep(self, weight: torch.Tensor) -> None:
        assert weight.grad is not None
        gradient, ends = weight.grad.view(-1), self.accelerator.sync_gradients
        if self.micro_batch or not ends:
            if weight not in self.earlier:
                self.earlier[weight] = torch.zeros(gradient.shape, dtype=gradient.dtype)
            if self.micro_batch:
                gradient.add_(self.from_host.narrow(0, 0, len(gradient)).copy_(self.earlier[weight]))
            self.earlier[weight].copy_(gradient)
        if not ends:
            return
        for group, gradients in zip(self.groups, self.gradients):
            place = 0
            for each, offset, size in group.mine:
                if each is weight:
                    part = gradient.narrow(0, offset, size)
                    self.norms.append(part.double().norm(2))
                    gradients.narrow(0, place, size).copy_(part.to(gradients.dtype))
                place += size
        weight.grad = None

    def _sum_up(self) -> None:
        self.micro_batch += 1

    @torch.no_grad()
    def step(self, *_: Any) -> None:
        """In the place of the optimizer's."""
        total = self.weights[0].new_zeros(1)
        dist.all_reduce(total)
        self.micro_batch, self.norms = 0, []
        groups = self.optimizer.param_groups
        for group, gradients, copy, settings in zip(self.groups, self.gradients, self.copies, groups):
            group.master.grad = gradients.mul_(1.0) if self.clip else gradients
            self.optimizer.param_groups = [settings]
            self.bare_step()
            group.own.copy_(copy.copy_(group.master))
        self.optimizer.param_groups = groups
        self.gather()
