"""The memory ledger: the memory of one training step by its parts at the peak, and the FLOPs of the step."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

import torch

from legroom.compat.patching import patched
from legroom.compat.torch_private import observed_resizes, op_name, storage_key
from legroom.estimator.ledger import memory_attribution as kinds
from legroom.estimator.ledger import outside_autograd, quantised
from legroom.estimator.ledger.kinds import KINDS
from legroom.estimator.ledger.op_flops import backward_flops, has_flop_formula, operation_flops
from legroom.estimator.ledger.op_observer import OpObserverMode
from legroom.estimator.ledger.storage_log import StorageLog
from legroom.estimator.ledger.tensor_origins import TensorOrigins


class MemoryLedger:
    """Use as `with MemoryLedger(model, optimizer, device) as ledger: step()`, then read `parts()` and `model_flops`.

    model: the plain module, whose parameters carry the gradients. optimizer: its states must exist, so at least one
    step has been taken. device: storages on other types of device are not counted. record_origins: also record which
    module and operation made each tensor (`origins`). log: one that goes on.

    It is an OpObserver. Without `with`, call `begin_step`, pass on every operation, and call `end_step`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device | str,
        record_origins: bool = False,
        log: StorageLog | None = None,
    ):
        self.model = model
        self.optimizer = optimizer
        self.log = log or StorageLog(torch.device(device).type)
        self.attribution = kinds.MemoryAttribution(model, optimizer, self.log)
        self.origins = TensorOrigins(model, optimizer, self.log) if record_origins else None
        # Of the forward passes and of the gradients that they need, without recomputation; None: an operation has no
        # formula. With all weights trained the gradients take twice the forward (Kaplan et al. 2020, section 2.1).
        self.model_flops: int | None = 0
        self._hooks = contextlib.ExitStack()
        self._on_gpu = torch.device(device).type != "cpu"
        self._reduced_scatter = False  # the last operation was one

    # --- during the step ---

    def before(self, func: Any, tensors: list[torch.Tensor]) -> None:
        if self.origins is not None:
            self.origins.before(func, tensors)
        if self._reduced_scatter and not self._on_gpu:
            # gloo reduces a copy of its own, takes this rank's part, and frees it in a thread: when, nobody knows.
            for tensor in tensors:
                self.log.add_passing(tensor, kinds.OTHER)
        self._reduced_scatter = op_name(func) == "_reduce_scatter_base_"
        self.attribution.record_arguments(tensors)

    def after(self, func: Any, args: Any, kwargs: Any, result: Any, signature: Hashable) -> None:
        phase = self.log.phase.current()
        if phase == "forward" and self.model_flops is not None:
            try:
                flops = operation_flops(func, args, kwargs, result)
                if flops:
                    self.model_flops += flops + backward_flops(func, args, flops)
            except (AssertionError, TypeError, ValueError):  # the formula does not accept these shapes
                self.model_flops = None
        self.attribution.record_result(func, args, result, phase)

    def on_subclass(self, func: Any) -> None:
        if has_flop_formula(func):
            self.model_flops = None  # tensor parallelism: work that several ranks do alike would count several times

    # --- around the step ---

    def begin_step(self) -> None:
        """Everything from here on belongs to the step."""
        self.log.step_start = len(self.log.events)
        attribution = self.attribution
        for buffer in self.model.buffers():
            attribution.mark(buffer, kinds.OTHER)
        attribution.mark_model_and_optimizer()
        with contextlib.ExitStack() as hooks:
            # The gradients are those that the optimizer finds: DDP and FSDP have reduced and freed theirs by then.
            hooks.enter_context(self.optimizer.register_step_pre_hook(self._before_optimizer))
            hooks.enter_context(observed_resizes(lambda storage, before: self.log.resized(storage, before, kinds.COPY)))
            begin_forward = self.log.phase.begin_forward
            hooks.enter_context(self.model.register_forward_pre_hook(lambda *_: begin_forward(), prepend=True))
            hooks.enter_context(
                torch.autograd.graph.saved_tensors_hooks(attribution.saved_for_backward, lambda tensor: tensor)
            )
            hooks.enter_context(outside_autograd.observed_by(attribution.saved_for_backward, self._weight_update))
            if self.origins is not None:
                self.origins.name_states()
                hooks.enter_context(self.origins.recording())
            self._hooks = hooks.pop_all()

    def _before_optimizer(self, *_: Any) -> None:
        if not self.log.phase.updates_weight:  # of one weight `_weight_update` knows the gradient
            self.attribution.mark_model_and_optimizer()

    @contextlib.contextmanager
    def _weight_update(self, weight: torch.Tensor) -> Iterator[None]:
        """Around the step of one weight inside the backward pass, after which its gradient is freed."""
        if weight.grad is not None:
            self.attribution.mark(weight.grad, kinds.GRADIENT)
        if self.origins is not None:
            self.origins.name_gradient(weight)
        with patched(self.log.phase, updates_weight=True):
            yield

    def end_step(self) -> list[int]:
        """Remove all hooks. Returns the indices in the log of allocations that were moved to the step's beginning."""
        self._hooks.close()
        self.attribution.mark_model_and_optimizer()
        if self.origins is not None:
            self.origins.name_states()
        return self.log.move_preexisting_first()

    def __enter__(self) -> MemoryLedger:
        self.begin_step()
        self._mode = OpObserverMode(self)
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
        self.end_step()

    # --- after the step ---

    def parts(self) -> dict[str, Any]:
        """The five parts at the peak, their sum, and the phase of the peak; bytes, as the record names them."""
        events = self.log.events
        peak_index = self.log.peak_index()
        peak_bytes = sum(sign * entry.bytes for entry, sign in events[: peak_index + 1])
        live_bytes: dict[str, int] = dict.fromkeys(KINDS, 0)
        at_peak = dict(live_bytes)
        largest = dict(live_bytes)
        for index, (entry, sign) in enumerate(events):
            live_bytes[entry.kind] += sign * entry.bytes
            if index < self.log.step_start:  # of the last step, and of what is there as it begins
                largest = dict(live_bytes)
            else:
                largest[entry.kind] = max(largest[entry.kind], live_bytes[entry.kind])
            if index == peak_index:
                at_peak = dict(live_bytes)
        return {
            "parameters_bytes": at_peak[kinds.PARAMETER] + at_peak[kinds.COPY],
            "gradients_bytes": at_peak[kinds.GRADIENT],
            "optimizer_bytes": at_peak[kinds.OPTIMIZER],
            "activations_bytes": at_peak[kinds.ACTIVATION],
            "other_bytes": at_peak[kinds.OTHER],
            "peak_tensor_bytes": peak_bytes,
            "peak_phase": events[peak_index][0].phase if events else None,
            "weights_bytes": self._weights_bytes(),
            "largest_bytes": largest,
        }

    def _weights_bytes(self) -> int:
        """What this rank keeps of the weights between steps; a storage that several share counts once."""
        tensors = quantised.scales(self.model)
        for weight in self.model.parameters():
            tensors += kinds.kept_tensors(weight)
        storages = [tensor.untyped_storage() for tensor in tensors]
        sizes = {storage_key(storage): storage.nbytes() for storage in storages}
        return sum(sizes.values())
