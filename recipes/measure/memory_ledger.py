"""The ledger: every storage of one training step, from birth to death, and what it was for.

A dispatch mode sees each operation's results; a weak reference tells when a storage dies. Nothing
is read or synchronised, so it works on any device, and on tensors that hold no data. What a storage
is for may become clear after its birth (a matrix product turns out to be a gradient), so the log is
written first and read when the step is over.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

PARAMETER, COPY, GRADIENT, OPTIMIZER, ACTIVATION, OTHER = (
    "parameters",
    "weight_copies",
    "gradients",
    "optimizer",
    "activations",
    "other",
)
RESIZE = torch.UntypedStorage.resize_
FAKE = torch._C._TorchDispatchModeKey.FAKE
PLAIN = (torch.Tensor, torch.nn.Parameter)
BACKWARD_PER_FORWARD = 2  # Kaplan et al. 2020 (arXiv 2001.08361), section 2.1: backward costs twice the forward


@dataclass
class Storage:
    """One block of memory: its size, what it is for, the phase of its birth, and whether it was there before."""

    bytes: int
    kind: str
    phase: str
    given: bool
    again: bool = False  # made by checkpointing, which computes it a second time


class MemoryLedger(TorchDispatchMode):
    """Use as `with Ledger(model, optimizer, device) as ledger: step()`, then read `parts()` and `flops`.

    model: the plain module, whose parameters carry the gradients. optimizer: its states must exist,
    so at least one step has been taken. device: storages elsewhere are not counted.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device):
        super().__init__()
        self.model, self.optimizer, self.device = model, optimizer, torch.device(device)
        self.log: list[tuple[Storage, int]] = []  # (storage, +1 at birth or -1 at death), in order
        self.flops = 0  # of the forward passes alone, without what checkpointing computes again
        self._gathering = any(hasattr(weight, "ds_tensor") for weight in model.parameters())  # ZeRO's stage 3
        self._alive: dict[int, tuple[weakref.ref, Storage]] = {}
        self._phase = "forward"
        self._start = 0  # where in the log the last step begins, which is the one that `parts` tells of

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here: no need to tell dynamo so at every operation

    # --- what happens during the step ---

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if is_fake(types):
            return func(*args, **kwargs)
        if types and any(kind not in PLAIN for kind in types):
            if func._overloadpacket in flop_registry:
                self.flops = None  # tensor parallelism: what several ranks compute alike would count several times
            return NotImplemented  # a sharded tensor: its own rules turn this into operations on this rank's part
        for tensor in self._given(func, args, kwargs):
            self._see(tensor, OTHER, given=True)  # what is new here was born before: the batch, mostly
        result = self._run(func, args, kwargs)
        phase = self.phase()
        if phase == "forward":
            self._add_flops(func, args, kwargs, result)
        kind = OTHER
        if func is torch.ops.aten._to_copy.default and self._kind(args[0]) == PARAMETER:
            kind = COPY  # autocast's cast of a weight
        again = phase == "backward" and torch.is_grad_enabled()  # the backward pass itself runs without grad
        for tensor in tensors_in((result,)):
            entry = self._see(tensor, kind)
            if again and entry is not None and not entry.given:
                entry.again = True
        # Checkpointing's own hooks stand before ours when it computes again; but what it saves, it detaches.
        if phase == "backward" and func is torch.ops.aten.detach.default:
            entry = self._see(args[0], OTHER, given=True)
            if entry is not None and entry.again and entry.kind == OTHER:
                entry.kind = ACTIVATION
        return result

    def _given(self, func, args, kwargs) -> list[torch.Tensor]:
        return tensors_in(args) + tensors_in(kwargs.values())

    def _run(self, func, args, kwargs):
        return func(*args, **kwargs)

    def _add_flops(self, func, args, kwargs, result) -> None:
        try:
            self.flops = self.flops + operation_flops(func, args, kwargs, result) if self.flops is not None else None
        except (AssertionError, TypeError, ValueError):  # a formula that does not know these shapes: no figure at all
            self.flops = None

    def phase(self) -> str:
        """forward, backward or step: what is running now. Clipping belongs to the step."""
        if torch._C._current_graph_task_id() != -1:
            self._phase = "backward"
        elif self._phase == "backward":
            self._phase = "step"  # until a forward pass begins
        return self._phase

    def _see(self, tensor: torch.Tensor, kind: str, given: bool = False) -> Storage | None:
        """Enter a tensor's storage into the log if it is new."""
        if tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        known = self._alive.get(storage._cdata)
        if known is not None and known[0]() is not None:
            entry = known[1]
        elif tensor.device.type == self.device.type or getattr(tensor, "is_paged", False):  # bitsandbytes' paged states
            entry = self._enter(storage, kind, given)
        else:
            return None
        if self._gathering and entry.kind == OTHER and hasattr(tensor, "ds_tensor"):
            entry.kind = COPY  # a weight that ZeRO's stage 3 has gathered for now
        return entry

    def _enter(self, storage: torch.UntypedStorage, kind: str, given: bool) -> Storage:
        """A storage is born; from now on its death is heard of."""
        key, entry = storage._cdata, Storage(storage.nbytes(), kind, self.phase(), given)
        self.log.append((entry, +1))

        def died(_):
            self.log.append((entry, -1))
            if self._alive.get(key, (None, None))[1] is entry:
                del self._alive[key]

        self._alive[key] = (weakref.ref(storage, died), entry)
        return entry

    def _resize(self, storage: torch.UntypedStorage, size: int):
        """FSDP gives gathered weights back by shrinking their storage to nothing, and lets it grow for the next time."""
        known = self._alive.get(storage._cdata)
        before = storage.nbytes()
        result = RESIZE(storage, size)
        if storage.device.type == self.device.type and size != before:
            if known is not None and known[0]() is not None:
                self.log.append((known[1], -1))
            self._enter(storage, COPY, given=False)
        return result

    def _mark(self, tensor: torch.Tensor, kind: str) -> None:
        entry = self._see(local_tensor(tensor), kind, given=True)
        if entry is not None:
            entry.kind = kind

    def _kind(self, tensor) -> str | None:
        local = local_tensor(tensor)
        known = self._alive.get(local.untyped_storage()._cdata) if isinstance(local, torch.Tensor) else None
        return known[1].kind if known else None

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Called for what autograd saves. Inputs and weights keep their own name."""
        entry = self._see(local_tensor(tensor), OTHER, given=True)  # what is new even now was born before: the batch
        if entry is not None and entry.kind == OTHER and not entry.given:
            entry.kind = ACTIVATION
        return tensor

    # --- around the step ---

    def __enter__(self):
        self._start = len(self.log)
        for buffer in self.model.buffers():
            self._mark(buffer, OTHER)
        self._mark_states()
        # What the optimizer finds are the gradients; what DDP and FSDP reduce them from has come and gone by then.
        self._hooks = [self.optimizer.register_step_pre_hook(lambda *_: self._mark_states())]
        torch.UntypedStorage.resize_ = lambda storage, size: self._resize(storage, size)
        self._hooks.append(
            self.model.register_forward_pre_hook(lambda *_: setattr(self, "_phase", "forward"), prepend=True)
        )
        self._saved = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._saved.__enter__()
        self._watch()
        return self

    def _watch(self) -> None:
        super().__enter__()

    def _look_away(self, *error) -> None:
        super().__exit__(*error)

    def __exit__(self, *error):
        torch.UntypedStorage.resize_ = RESIZE
        self._look_away(*error)
        self._saved.__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        self._mark_states()
        self._put_first({id(entry) for storage, entry in self._alive.values() if storage() is not None})

    def _put_first(self, alive: set[int]) -> list[int]:
        """What a step came by without having made it, and left behind, was there when it began: DDP's buckets, batches.

        (gloo's own buffers come late, too, and go.) Returns where in the log the births stood that are put first.
        """
        late = [
            index
            for index in range(self._start, len(self.log))
            if self.log[index][1] > 0 and self.log[index][0].given and id(self.log[index][0]) in alive
        ]
        moved = set(late)
        others = [self.log[index] for index in range(self._start, len(self.log)) if index not in moved]
        self.log[self._start :] = [self.log[index] for index in late] + others
        return late

    def _mark_states(self) -> None:
        owners = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        for weight in [*owners, *self.optimizer.state]:  # ZeRO's optimizer has copies of its own: flat pieces in fp32
            self._mark(weight, COPY)
            if weight.grad is not None:
                self._mark(weight.grad, GRADIENT)
        for weight in self.model.parameters():
            for kept in _kept(weight):
                self._mark(kept, PARAMETER)
            if weight.grad is not None:
                self._mark(weight.grad, GRADIENT)
        for state in self.optimizer.state.values():
            for value in tensors_in((state,)):
                self._mark(value, OPTIMIZER)

    # --- what it says afterwards ---

    def peak(self) -> int:
        """Where in the log the last step takes the most."""
        live = most = where = 0
        for index, (entry, sign) in enumerate(self.log):
            live += sign * entry.bytes
            if live > most and index >= self._start - 1:
                most, where = live, index
        return where

    def parts(self) -> dict:
        """The five parts at the peak, their sum, and the phase of the peak; bytes, as the record names them."""
        where = self.peak()
        peak = sum(sign * entry.bytes for entry, sign in self.log[: where + 1])
        now = dict.fromkeys((PARAMETER, COPY, GRADIENT, OPTIMIZER, ACTIVATION, OTHER), 0)
        kinds, largest = now, dict(now)
        for index, (entry, sign) in enumerate(self.log):
            now[entry.kind] += sign * entry.bytes
            if index < self._start:
                largest = dict(now)
            elif now[entry.kind] > largest[entry.kind]:
                largest = largest | {entry.kind: now[entry.kind]}
            if index == where:
                kinds = dict(now)
        stored = [kept.untyped_storage() for weight in self.model.parameters() for kept in _kept(weight)]
        weights = {storage._cdata: storage.nbytes() for storage in stored}
        return {
            "parameters_bytes": kinds[PARAMETER] + kinds[COPY],
            "gradients_bytes": kinds[GRADIENT],
            "optimizer_bytes": kinds[OPTIMIZER],
            "activations_bytes": kinds[ACTIVATION],
            "other_bytes": kinds[OTHER],
            "peak_tensor_bytes": peak,
            "peak_phase": self.log[where][0].phase if self.log else None,
            "weights_bytes": sum(weights.values()),
            "largest_bytes": largest,
        }

    @property
    def model_flops(self) -> int | None:
        """FLOPs of forward and backward, without recomputation; None where an operation has no formula."""
        return None if self.flops is None else self.flops * (1 + BACKWARD_PER_FORWARD)


def operation_flops(func, args, kwargs, result) -> int:
    """FLOPs of one operation by torch's own formulas; 0 for what they do not count (element-wise work)."""
    packet = func._overloadpacket
    if packet._qualified_op_name.startswith("aten::_scaled_dot_product"):
        # One rule for every attention kernel. torch's table lacks the CPU's, and before 2.13 refuses heads that
        # share keys and values: the work is that of as many heads as the queries have.
        backward = "backward" in packet.__name__  # whose first argument is the result's gradient
        query, key, value = (tuple(tensor.shape) for tensor in (args[1:4] if backward else args[:3]))
        heads = query[1]
        shapes = query, (key[0], heads, *key[2:]), (value[0], heads, *value[2:])
        return sdpa_backward_flop_count(tuple(args[0].shape), *shapes) if backward else sdpa_flop_count(*shapes)
    formula = flop_registry.get(packet)
    return formula(*args, **kwargs, out_val=result) if formula else 0


def is_fake(types) -> bool:
    """Whether an operation is on torch's own fake tensors, by which DTensor works out what a result will be like.

    Their mode comes after any other, so that this one sees what takes neither memory nor time. types: as a mode gets them.
    """
    return torch._C._get_dispatch_mode(FAKE) is not None or FakeTensor in types


def tensors_in(values) -> list[torch.Tensor]:
    """Every tensor among values, and in the lists, tuples and dictionaries among them."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
        elif isinstance(value, dict):
            found += tensors_in(value.values())
    return found


def local_tensor(tensor):
    """This rank's part of a tensor that FSDP has sharded; any other as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def _kept(weight) -> list[torch.Tensor]:
    """What a rank keeps of a weight between steps: its part under FSDP; under ZeRO's stage 3, too, and small ones whole."""
    if not hasattr(weight, "ds_tensor"):
        return [local_tensor(weight)]
    return [weight.ds_tensor, weight] if weight.ds_persist else [weight.ds_tensor]
