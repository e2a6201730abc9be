"""What all stages of parallelism=zero on the fake device have in common: the optimizer's step on flat parts."""

from typing import Any

import torch
import torch.distributed as dist

from legroom.config import Config
from legroom.parallelism.unwrap import inner_optimizer

Tensors = list[torch.Tensor]
HOST = torch.device("cpu")


class ZeroSteps:
    """An optimizer of flat parts. A stage has its own `backward` and `step`; the optimizer's is `bare_step`.

    waiting: weights whose gradients are to be reduced, of `elements` in all, so many as the bucket holds. Its size is
    Accelerate's for 'auto' where none is given.
    """

    rank = 0

    def __init__(self, cfg: Config, loop: Any):
        self.ranks, self.clip = cfg.parallelism.world_size, cfg.train.max_grad_norm
        self.optimizer, self.accelerator = inner_optimizer(loop.optimizer), loop.accelerator
        self.bare_step = self.optimizer.step
        self.bucket = cfg.parallelism.reduce_bucket_size or loop.bare_model.config.hidden_size**2
        self.elements, self.waiting = 0, list[torch.Tensor]()
        self.norms: Tensors = []  # of the gradients that are copied to the host

    def scale(self, gradients: list[Tensors]) -> torch.Tensor:
        """By what clipping multiplies: from the norm in fp64, group by group. DeepSpeed computes it in any case."""
        squares = []
        for group in gradients:
            total = torch.stack([torch.linalg.vector_norm(one.double()) for one in group]).pow(2).sum().float()
            dist.all_reduce(total)
            squares.append(total)
        return 1 / (torch.stack(squares).sum().sqrt() + 1e-6).div(self.clip or 1).clamp(min=1.0)


def joined(tensors: Tensors) -> torch.Tensor:
    """One flat tensor of several; a single one is not copied."""
    return tensors[0].view(-1) if len(tensors) == 1 else torch.cat([tensor.view(-1) for tensor in tensors])


def placed(gradient: torch.Tensor, into: torch.Tensor, at: int) -> torch.Tensor:
    """The gradient in a flat buffer."""
    place = into.narrow(0, at, gradient.numel()).view(gradient.shape)
    place.copy_(gradient)
    return place
