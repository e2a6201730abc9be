"""Which part of the memory a storage belongs to: parameters, gradients, optimizer states, activations or other.

- parameters, gradients, optimizer: the tensors that the model and the optimizer hold, marked before the step, before
  the optimizer's step and after it.
- weight_copies: copies of parameters in another dtype (autocast) or gathered from other ranks (FSDP, ZeRO stage 3).
- activations: storages allocated in the step that autograd saves for the backward pass.
- other: all the rest, among them inputs, buffers and temporary results.

The use of a storage may be known only after its allocation (a matrix product turns out to be a gradient), so the log
keeps an entry whose kind changes, and is read when the step is over.
"""

from collections.abc import Callable
from typing import Any

import torch

from legroom.compat.torch_private import held_tensors, local_tensor, op_name, without_graph
from legroom.estimator.ledger import quantised
from legroom.estimator.ledger.kinds import ACTIVATION, COPY, GRADIENT, OPTIMIZER, OTHER, PARAMETER
from legroom.estimator.ledger.op_flops import tensors_in
from legroom.estimator.ledger.storage_log import StorageEntry, StorageLog

# Operations that allocate their last result first: CUDA's dropout its mask.
MADE_LAST_FIRST = {"native_dropout"}


class MemoryAttribution:
    """Sets the kind of the entries of a log. model: the plain module, whose parameters carry the gradients."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, log: StorageLog):
        self.model = model
        self.optimizer = optimizer
        self.log = log
        gathers = any(hasattr(weight, "ds_tensor") for weight in model.parameters())  # DeepSpeed's ZeRO stage 3
        self._record: Callable[..., StorageEntry | None] = self._record_gathered if gathers else log.record

    def _record_gathered(self, tensor: torch.Tensor, kind: str, preexisting: bool = False) -> StorageEntry | None:
        entry = self.log.record(tensor, kind, preexisting)
        if entry is not None and entry.kind == OTHER and hasattr(tensor, "ds_tensor"):
            entry.kind = COPY  # a parameter that ZeRO stage 3 has gathered
        return entry

    def record_arguments(self, tensors: list[torch.Tensor]) -> None:
        """The arguments of an operation: one that is new was allocated before the log began (the batch, mostly)."""
        for tensor in tensors:
            self._record(tensor, OTHER, True)

    def record_result(self, func: Any, args: Any, result: Any, phase: str) -> None:
        """The results of an operation: one that is new was allocated by it."""
        kind = OTHER
        if func is torch.ops.aten._to_copy.default and self._is_parameter(args[0]):
            kind = COPY  # autocast's cast of a parameter
        elif op_name(func) == "dequantize_4bit":
            kind = COPY  # a quantised weight, for one product
        # Autograd runs the backward pass without grad mode; checkpointing enables it to run a forward pass again.
        recomputed = phase == "backward" and torch.is_grad_enabled()
        results = tensors_in((result,))
        if op_name(func) in MADE_LAST_FIRST:
            results.reverse()
        for tensor in results:
            entry = self._record(tensor, kind)
            if recomputed and entry is not None and not entry.preexisting:
                entry.recomputed = True
        # While checkpointing recomputes, its own saved-tensor hooks replace `saved_for_backward`. It detaches each
        # tensor that it saves: that is how recomputed activations are recognised.
        if phase == "backward" and func is torch.ops.aten.detach.default:
            entry = self._record(args[0], OTHER, True)
            if entry is not None and entry.recomputed and entry.kind == OTHER:
                entry.kind = ACTIVATION

    def saved_for_backward(self, tensor: torch.Tensor) -> torch.Tensor:
        """The pack hook of `saved_tensors_hooks`: what autograd saves is an activation if the step allocated it.

        Inputs and parameters are saved, too, and keep their kind.
        """
        entry = self._record(local_tensor(tensor), OTHER, True)  # new even here: allocated before the log began
        if entry is not None and entry.kind == OTHER and not entry.preexisting:
            entry.kind = ACTIVATION
        return without_graph(tensor)

    def mark(self, tensor: torch.Tensor, kind: str) -> None:
        """Set the kind of a tensor that was allocated before the step."""
        entry = self._record(local_tensor(tensor), kind, True)
        if entry is not None:
            entry.kind = kind

    def mark_model_and_optimizer(self) -> None:
        """Set the kind of parameters, gradients and optimizer states as they are now.

        The log has those that are new in the order in which a model is moved to its device, where an optimizer may know
        a part of them alone: the allocator's blocks lie in that order.
        """
        for weight in self.model.parameters():
            for kept in kept_tensors(weight):
                self._record(kept, PARAMETER, True)
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        for weight in [*weights, *self.optimizer.state]:  # ZeRO's optimizer has flat copies of its own in fp32
            self.mark(weight, COPY)
            if weight.grad is not None:
                self.mark(weight.grad, GRADIENT)
        for weight in self.model.parameters():
            for kept in kept_tensors(weight):
                self.mark(kept, PARAMETER)
            if weight.grad is not None:
                self.mark(weight.grad, GRADIENT)
        for scale in quantised.scales(self.model):
            self.mark(scale, PARAMETER)
        for state in self.optimizer.state.values():
            for value in tensors_in((state,)):
                for held in held_tensors(value):
                    self.mark(held, OPTIMIZER)

    def _is_parameter(self, tensor: Any) -> bool:
        local = local_tensor(tensor)
        if not isinstance(local, torch.Tensor):
            return False
        entry = self.log.entry_of(local)
        return entry is not None and entry.kind == PARAMETER


def kept_tensors(weight: torch.nn.Parameter) -> list[torch.Tensor]:
    """What a rank keeps of a parameter between steps: under FSDP its shard.

    Under ZeRO stage 3 its shard (`ds_tensor`), and a small parameter (`ds_persist`) whole beside it.
    """
    shard = getattr(weight, "ds_tensor", None)
    if shard is None:
        return [local_tensor(weight)]
    if getattr(weight, "ds_persist", False):
        return [shard, weight]
    return [shard]
