"""The storages on the device: when each was allocated and freed, in which phase of a step, and what it is.

A storage is the memory that tensors are views of. A weak reference to its Python object reports when it is freed.
"""

from __future__ import annotations

import weakref

import torch

from legroom_inside.values import tensors_of

PARAMETER, COPY, GRADIENT, OPTIMIZER, OTHER = "parameters", "weight_copies", "gradients", "optimizer", "other"
ACTIVATION = "activations"
FORWARD, BACKWARD, STEP = "forward", "backward", "step"
INDICES = (torch.int64, torch.int32)  # of the rows of a batch: no activations
_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)


class Entry:
    """One storage. card: the number of its card, None on the host. in_graph: it was allocated where autograd may keep
    it for the backward pass. is_index: it has whole numbers, as the rows of a batch."""

    __slots__ = ("bytes", "kind", "phase", "module", "operation", "name", "in_graph", "is_index", "number", "card")

    def __init__(self, size, kind, phase, module, operation, number, card=None):
        self.bytes = size
        self.kind = kind
        self.phase = phase
        self.module = module
        self.operation = operation
        self.name = ""  # of a weight and its states
        self.in_graph = False
        self.is_index = False
        self.number = number
        self.card = card


class Phase:
    """forward, backward or step: what runs now. Clipping gradients belongs to the step."""

    def __init__(self):
        self.latest = FORWARD

    def current(self):
        if _graph_task() != -1:
            self.latest = BACKWARD
        elif torch.is_grad_enabled():
            self.latest = FORWARD  # a backward pass and an optimizer's step need no gradients of their own
        elif self.latest == BACKWARD:
            self.latest = STEP
        return self.latest


class StorageLog:
    """events: (entry, +1 or -1, phase) in order. device_type: whose storages are followed. modules: those that run, the
    innermost last."""

    def __init__(self, device_type):
        self.device_type = device_type
        self.events = []
        self.phase = Phase()
        self.modules = []
        self._alive = {}
        self._number = 0

    def record(self, tensor, operation="", phase=None):
        """The entry of a tensor's storage on the device, which is added if it is new; None: it is not there. phase:
        in which it is added; None: what runs now."""
        if tensor.layout is not torch.strided or tensor.device.type != self.device_type:
            return None
        storage = tensor.untyped_storage()
        entry = self._entry_of_storage(storage)
        if entry is not None:
            return entry
        entry = self._add(storage, operation, phase)
        entry.is_index = tensor.dtype in INDICES
        return entry

    def _add(self, storage, operation, phase=None):
        phase = phase or self.phase.current()
        module = self.modules[-1] if self.modules else None
        self._number += 1
        entry = Entry(storage.nbytes(), OTHER, phase, module, operation, self._number, storage.device.index)
        entry.in_graph = torch.is_grad_enabled()
        key = storage._cdata
        self.events.append((entry, 1, phase))

        def freed(_):
            self.events.append((entry, -1, self.phase.latest))
            if self._alive.get(key, (None, None))[1] is entry:
                del self._alive[key]

        self._alive[key] = (weakref.ref(storage, freed), entry)
        return entry

    def resized(self, storage, before):
        """A storage has another size: FSDP frees a gathered weight so, and allocates it again."""
        if storage.device.type != self.device_type or storage.nbytes() == before:
            return
        _, entry = self._alive.pop(storage._cdata, (None, None))
        if entry is not None:
            self.events.append((entry, -1, self.phase.latest))
        if storage.nbytes():
            self._add(storage, "resize_").kind = COPY

    def entry_of(self, tensor):
        if tensor.layout is not torch.strided or tensor.device.type != self.device_type:
            return None
        return self._entry_of_storage(tensor.untyped_storage())

    def _entry_of_storage(self, storage):
        reference, entry = self._alive.get(storage._cdata, (None, None))
        if reference is None or reference() is None:  # one that is gone had the same address
            return None
        return entry

    def mark(self, value, kind, name=""):
        """Say what the tensors of a value are, also those inside of subclasses (DTensor, quantised states)."""
        for tensor in tensors_of((value,)):
            for held in held_tensors(tensor):
                entry = self.record(held, phase=self.phase.latest)
                if entry is not None:
                    entry.kind = kind
                    entry.name = name or entry.name


def held_tensors(tensor):
    """The plain tensors that a tensor's memory consists of."""
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, torch.Tensor):
        return held_tensors(local)
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is not None:
        try:
            names, _ = tensor.__tensor_flatten__()
        except Exception:  # one that is not whole yet
            return []
        held = []
        for name in names:
            held += held_tensors(getattr(tensor, name))
        return held
    held = [tensor]
    shard = getattr(tensor, "ds_tensor", None)  # of DeepSpeed's stage 3
    if isinstance(shard, torch.Tensor):
        held.append(shard)
    scales = getattr(tensor, "quant_state", None)  # of bitsandbytes; those of nested quantisation have scales, too
    while scales is not None:
        held += [value for value in vars(scales).values() if isinstance(value, torch.Tensor)]
        scales = getattr(scales, "state2", None)
    return held


def settle_activations(events):
    """Name the activations: what a forward pass allocated and the backward pass found, or what is recomputed.

    A checkpoint that is reentrant runs its layers without a graph, so that the inputs that it keeps are told by when
    they are freed alone. What is freed behind the backward pass, where gradients are enabled again, may look as if a
    forward pass had freed it.
    """
    backward_events = 0
    before = {}  # of an entry: how many there were when it was allocated
    freed_in = {}
    outlives_forward = {}
    for entry, sign, phase in events:
        if phase == BACKWARD:
            backward_events += 1
        if sign > 0:
            before[entry] = backward_events
            outlives_forward[entry] = True
            continue
        freed_in[entry] = phase
        outlives_forward[entry] = phase != FORWARD or backward_events > before.get(entry, 0)
    for entry in outlives_forward:
        if entry.kind != OTHER or entry.is_index:
            continue
        if entry.in_graph:
            is_kept = outlives_forward[entry] or entry.phase == BACKWARD
        else:
            is_kept = entry.phase == FORWARD and freed_in.get(entry) == BACKWARD
        if is_kept:
            entry.kind = ACTIVATION
