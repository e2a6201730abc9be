"""parallelism=zero, stages 1 and 2, on the fake device: weights in flat buffers, of which each rank updates a part.

Written after DeepSpeed 0.19 (runtime/zero/stage_1_and_2.py); see zero_ranks.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from legroom.config import Config
from legroom.foresight.zero.steps import Tensors, ZeroSteps, joined, placed


@dataclass
class Group:
    """A group of the optimizer. flat: its weights. own: this rank's part of them. master: the optimizer's copy of it.
    mine: (weight, offset, elements) of what the part has of each weight. sums: the gradients of those weights."""

    flat: torch.Tensor
    own: torch.Tensor
    master: torch.Tensor
    mine: list[tuple[torch.Tensor, int, int]]
    sums: Tensors = field(default_factory=list)


class FlatRank(ZeroSteps):
    """One rank: whole weights; gradients are reduced in buckets, and kept where the rank has a part of their weight."""

    def __init__(self, cfg: Config, loop: Any):
        super().__init__(cfg, loop)
        self.stage, groups = cfg.parallelism.stage, self.optimizer.param_groups
        self.weights = [weight for group in groups for weight in trained(group)]
        self.rank = max(range(self.ranks), key=self._kept_elements)
        owners = self._owners(groups)  # before the groups have flat parts in the place of their weights
        self.groups = [self._flattened(group) for group in groups]
        self.mine = {weight for group in self.groups for weight, *_ in group.mine}
        self.owners = owners  # of each weight: (rank, elements) of the ranks that have a part of it, in order
        self.kept: torch.Tensor | None = None  # the reduced gradients of these
        self.kept_elements = 0
        self.buffer: torch.Tensor | None = None  # of gradients that wait; one that is larger has none
        for weight in self.weights:
            weight.register_post_accumulate_grad_hook(self._ready)

    def _kept_elements(self, rank: int) -> int:
        """Of the gradients that a rank keeps: whole ones, and a copy of its part where the part is of several."""
        elements = 0
        for group in self.optimizer.param_groups:
            parts = self.parts(trained(group), rank)
            elements += sum(weight.numel() for weight, *_ in parts)
            if len(parts) > 1:
                elements += self._size(trained(group))
        return elements

    def _size(self, weights: Tensors) -> int:
        """The elements of each rank's part: DeepSpeed pads to two for each rank."""
        return -(-sum(weight.numel() for weight in weights) // (2 * self.ranks)) * 2

    def parts(self, weights: Tensors, rank: int) -> list[tuple[torch.Tensor, int, int]]:
        first, begin, found = rank * self._size(weights), 0, []
        for weight in weights:
            low, high = max(begin, first), min(begin + weight.numel(), first + self._size(weights))
            if low < high:
                found.append((weight, low - begin, high - low))
            begin += weight.numel()
        return found

    def _owners(self, groups: list[dict[str, Any]]) -> dict[torch.Tensor, list[tuple[int, int]]]:
        owners: dict[torch.Tensor, list[tuple[int, int]]] = {}
        for group in groups:
            weights = trained(group)
            for rank in range(self.ranks):
                for weight, _, elements in self.parts(weights, rank):
                    owners.setdefault(weight, []).append((rank, elements))
        return owners

    @torch.no_grad()
    def _flattened(self, group: dict[str, Any]) -> Group:
        weights, size = trained(group), self._size(trained(group))
        sizes = [weight.numel() for weight in weights]
        padding = size * self.ranks - sum(sizes)
        flat = joined([*weights, weights[0].new_zeros(padding)])
        own = flat.narrow(0, self.rank * size, size)
        for weight, place in zip(weights, flat.split([*sizes, padding])):
            weight.data = place.view(weight.shape)
        group["params"] = [self._master(own).requires_grad_()]
        return Group(flat, own, group["params"][0], self.parts(weights, self.rank))

    def _master(self, own: torch.Tensor) -> torch.Tensor:
        return own.clone().float()

    # --- the backward pass ---

    def backward(self, loss: torch.Tensor, **_: Any) -> None:
        """In the place of `accelerator.backward`."""
        loss.backward()
        if self.stage == 1 and not self.accelerator.sync_gradients:
            return
        if self.stage == 1:
            for weight in self.weights:
                self._add(weight)
        self._reduce()
        self._sum_up()
        self.buffer = self.kept = None
        self.kept_elements = 0
        for weight in self.weights:
            weight.grad = None

    def _sum_up(self) -> None:
        """Add the gradients of a micro-batch to those of the ones before it."""
        for group in self.groups:
            found = [torch.zeros_like(w) if w.grad is None else w.grad for w, *_ in group.mine]
            for total, new in zip(group.sums, found):
                total.add_(new)
            group.sums = group.sums or found

    def _ready(self, weight: torch.Tensor) -> None:
        if self.buffer is None:
            self.buffer = weight.new_empty(self.bucket)
        if self.stage == 2:
            self._add(weight)

    def _add(self, weight: torch.Tensor) -> None:
        if weight.grad is None:
            return
        if self.elements + weight.numel() > self.bucket:
            self._reduce()
        if weight.numel() <= self.bucket and self.buffer is not None:
            weight.grad = placed(weight.grad, self.buffer, self.elements)
        self.elements += weight.numel()
        self.waiting.append(weight)

    def _reduce(self) -> None:
        """Average the gradients that wait, and keep those of this rank's weights."""
        if self.waiting and self.buffer is not None:
            large = self.waiting[0].grad if self.elements > self.bucket else None
            sent = self.buffer.narrow(0, 0, self.elements) if large is None else large.view(-1)
            sent.div_(self.ranks)
            slices = self._slices()
            if len(slices) > 1:  # DeepSpeed sends them in one tensor, and copies what comes back (allreduce_bucket)
                together = torch.cat(sent.split(slices))
                dist.all_reduce(together)
                sent.copy_(together)
                del together
            else:
                dist.all_reduce(sent)
        for weight in self.waiting:
            if weight in self.mine and weight.grad is not None:
                self._keep(weight)
            elif self.stage == 2:
                weight.grad = None
        self.waiting, self.elements = [], 0

    def _slices(self) -> list[int]:
        """The elements of the parts of the gradients that wait, each of another rank than the one before."""
        sizes: list[int] = []
        before = None
        for weight in self.waiting:
            for rank, elements in self.owners[weight]:
                if rank == before:
                    sizes[-1] += elements
                else:
                    sizes.append(elements)
                before = rank
        return sizes

    def _keep(self, weight: torch.Tensor) -> None:
        """A reduced gradient of which this rank needs a part, in the place of the bucket, which is used again."""
        assert weight.grad is not None
        if self.kept is None:
            self.kept = weight.new_empty(sum(each.numel() for each in self.mine))
        weight.grad = placed(weight.grad, self.kept, self.kept_elements)
        self.kept_elements += weight.numel()

    # --- the optimizer's step ---

    @torch.no_grad()
    def step(self, *_: Any) -> None:
        """In the place of the optimizer's."""
        averaged = [self._averaged(group) for group in self.groups]
        for group in self.groups:
            group.sums = []
        scale, groups = self.scale(averaged), self.optimizer.param_groups
        for group, settings in zip(self.groups, groups):
            group.master.grad = joined(averaged.pop(0)).to(group.master.dtype)
            if self.clip:
                group.master.grad.mul_(scale)
            self.optimizer.param_groups = [settings]
            self.bare_step()
            group.master.grad = None
            group.own.copy_(group.master)
        self.optimizer.param_groups = groups
        self.gather()

    def gather(self) -> None:
        for group in self.groups:
            if self.ranks > 1:
                dist.all_gather_into_tensor(group.flat, group.own)

    def _averaged(self, group: Group) -> Tensors:
        """Of the gradients what is this rank's, padded to its part."""
        found = [total.view(-1)[offset : offset + size] for total, (_, offset, size) in zip(group.sums, group.mine)]
        lacking = group.master.numel() - sum(len(part) for part in found)
        return [*found, group.own.new_zeros(lacking)] if lacking else found


def trained(group: dict[str, Any]) -> Tensors:
    """The weights of a group of the optimizer that are trained."""
    return [weight for weight in group["params"] if weight.requires_grad]
