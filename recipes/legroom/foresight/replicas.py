"""parallelism=dp on the fake device: GPU 0 of several, as torch's DataParallel uses it (torch/nn/parallel).

The weights are not copied there. Its gradients are complete before those of all GPUs are summed beside them, and it
gathers the outputs of all.
"""

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from legroom.estimator.speed.operation_names import COLLECTIVE
from legroom.estimator.speed.operations import Operation, Tally

BUFFER_BYTES = 10_485_760  # torch sums so many bytes of gradients at a time


class _Broadcast(torch.autograd.Function):
    """Weights as all GPUs get them; one node of the graph, so that its gradients are summed when all are there."""

    @staticmethod
    def forward(ctx: Any, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        sums, chunk = [], []
        for index, gradient in enumerate(gradients):
            chunk.append(gradient)
            following = gradients[index + 1].nbytes if index + 1 < len(gradients) else BUFFER_BYTES
            if sum(each.nbytes for each in chunk) + following > BUFFER_BYTES:
                flat = torch.cat([each.view(-1) for each in chunk]) if len(chunk) > 1 else gradient.view(-1)
                pieces = torch.empty_like(flat).split([each.numel() for each in chunk])
                sums += [piece.view(each.shape) for piece, each in zip(pieces, chunk)]
                chunk = []
        return tuple(sums)


class Replicas(nn.DataParallel):
    """The model on `gpus` GPUs, seen from the first. Its batch is that GPU's part."""

    def __init__(self, module: nn.Module, gpus: int):
        nn.Module.__init__(self)  # DataParallel's own asks for the GPUs
        self.module, self.gpus, self.gathered_bytes = module, gpus, 0

    def forward(self, **batch: torch.Tensor) -> Any:
        trained = {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}
        copies = dict(zip(trained, _Broadcast.apply(*trained.values())))
        output = functional_call(self.module, copies, (), batch, tie_weights=True)
        with torch.no_grad():
            for name, value in output.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    output[name] = torch.cat([value] * self.gpus)
                    self.gathered_bytes = output[name].nbytes
        return output

    def add_transfers(self, tally: Tally, micro_batches: int) -> None:
        """What the GPUs send each other in a step, and the calls of the other threads, which share the interpreter."""
        # As a ring's, which sends (n - 1) / n of a tensor: here it is all of it, and the outputs of n - 1 GPUs.
        whole = sum(weight.nbytes for weight in self.module.parameters()) * self.gpus // (self.gpus - 1)
        sent = {
            "broadcast": (whole, "forward"),
            "gather": (self.gathered_bytes, "forward"),
            "reduce": (whole, "backward"),
        }
        for name, (size, phase) in sent.items():
            tally.put(Operation(name, COLLECTIVE, bytes=size, shape=(self.gpus, 1)), phase, micro_batches)
        tally.calls["forward"] *= self.gpus
