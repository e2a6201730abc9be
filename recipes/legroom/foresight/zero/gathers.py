"""parallelism=zero, stage 3, on the fake device: which weights are whole, and when.

Written after DeepSpeed 0.19 (runtime/zero/partitioned_param_coordinator.py and partition_parameters.py).
"""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from legroom.foresight.zero.steps import Tensors


class Gather:
    """Weights on their way to every rank. A single one is gathered in place; several in one buffer, and then copied."""

    def __init__(self, weights: Tensors, shapes: dict[torch.Tensor, torch.Size], ranks: int):
        self.weights, self.shapes, self.buffer = weights, shapes, None
        parts = [part_of(weight) for weight in weights]
        device = weights[0].device  # a part may be on the host
        if ranks == 1:
            for weight, part in zip(weights, parts):
                weight.data = self._shaped(part.to(device), weight)
            return
        elements = sum(part.numel() for part in parts)
        buffer = parts[0].new_empty(ranks * elements, device=device)
        if len(weights) == 1:
            dist.all_gather_into_tensor(buffer, parts[0].to(device))
            weights[0].data = self._shaped(buffer, weights[0])
            return
        own = buffer.narrow(0, 0, elements)
        torch.cat([part.to(device) for part in parts], out=own)
        dist.all_gather_into_tensor(buffer, own)
        self.buffer = buffer

    def _shaped(self, flat: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return flat.narrow(0, 0, math.prod(self.shapes[weight])).view(self.shapes[weight])

    def wait(self) -> None:
        """The weights are there; the buffer is freed with this object."""
        if self.buffer is None:
            return
        begin, pieces = 0, self.buffer.view(-1, sum(part_of(weight).numel() for weight in self.weights))
        for weight in self.weights:
            size = part_of(weight).numel()
            weight.data = self._shaped(torch.cat([piece.narrow(0, begin, size) for piece in pieces]), weight)
            begin += size
        self.buffer = None


def part_of(weight: Any) -> torch.Tensor:
    """What this rank keeps of a weight; DeepSpeed's name, by which the memory ledger knows it."""
    return weight.ds_tensor


class Coordinator:
    """Keeps those weights whole that a module works with, and fetches ahead by the order of the step before."""

    def __init__(self, shapes: dict[torch.Tensor, torch.Size], ranks: int, ahead: int, live: int):
        self.shapes, self.ranks, self.ahead, self.live = shapes, ranks, ahead, live
        self.places = {weight: place for place, weight in enumerate(shapes)}
        self.flying: dict[torch.Tensor, Gather] = {}
        self.whole: set[torch.Tensor] = set()
        self.users: dict[torch.Tensor, set[nn.Module]] = {weight: set() for weight in shapes}
        self.order: list[nn.Module] = []  # of the fetches of the pass that is recorded
        self.begin_pass()

    def begin_pass(self) -> None:
        """A forward pass begins: of the second on the order is known."""
        for gather in list(self.flying.values()):
            gather.wait()
        self.whole |= self.flying.keys()
        self.free(list(self.flying))
        self.flying.clear()
        self.complete = bool(self.order)
        self.step, self.available = 0, 0
        self.queue = deque((weight, at) for at, module in enumerate(self.order) for weight in self._own(module))
        self.fetched_for: dict[torch.Tensor, int] = {}

    def _own(self, module: nn.Module) -> Tensors:
        return sorted(set(module.parameters(recurse=False)), key=self.places.__getitem__)

    def gather(self, weights: Iterable[torch.Tensor]) -> None:
        """Send for weights that are not whole."""
        absent = [weight for weight in weights if weight not in self.whole and weight not in self.flying]
        if absent:
            self.available += sum(math.prod(self.shapes[weight]) for weight in absent)
            self.flying.update(dict.fromkeys(absent, Gather(absent, self.shapes, self.ranks)))

    def arrive(self, weights: Iterable[torch.Tensor]) -> None:
        """Wait for weights that were sent for."""
        for weight in weights:
            if weight in self.flying:
                self.flying.pop(weight).wait()
                self.whole.add(weight)

    @torch.no_grad()
    def fetch(self, module: nn.Module) -> None:
        """Before a pass of a module: its weights, and some of those that come after them."""
        own = self._own(module)
        if not self.complete:
            self.order.append(module)
        self.gather(own)
        for weight in own:
            self.users[weight].add(module)
        self.arrive(own)
        if self.complete:
            for weight in [weight for weight in own if self.fetched_for.get(weight, -1) < self.step]:
                self.fetched_for[weight] = next(at for each, at in iter(self.queue.popleft, None) if each is weight)
            self._fetch_ahead()
        self.step += 1

    def _fetch_ahead(self) -> None:
        chosen, elements = dict[torch.Tensor, None](), 0
        while self.queue and elements < min(self.live - self.available, self.ahead):
            weight, at = self.queue.popleft()
            self.fetched_for[weight] = max(self.fetched_for.get(weight, -1), at)
            if weight not in self.whole and weight not in self.flying and weight not in chosen:
                chosen[weight] = None
                elements += math.prod(self.shapes[weight])
        self.gather(sorted(chosen, key=self.places.__getitem__))

    @torch.no_grad()
    def release(self, module: nn.Module) -> None:
        """After a pass of a module."""
        own = self._own(module)
        for weight in own:
            self.users[weight].discard(module)
        if self.complete:
            own = [w for w in own if not w.ds_persist and self.fetched_for.get(w, -1) <= self.step]  # type: ignore[attr-defined]
        self.free(own)

    def free(self, weights: Tensors) -> None:
        """Keep the rank's part alone of whole weights that no module is at work with."""
        for weight in weights:
            if weight in self.whole and not self.users[weight]:
                self.whole.discard(weight)
                self.available -= math.prod(self.shapes[weight])
                weight.data = weight.new_empty(0)
