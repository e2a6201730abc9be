"""The log of storages: when each was allocated and freed, in which phase of the step, and how large it is.

A tensor is a view of a storage, which owns the memory. A weak reference to the storage's Python object reports when it
is freed. No value is read and nothing is synchronised, so this works on any device, and on tensors that hold no data.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from legroom.compat.torch_private import current_graph_task_id, storage_key


@dataclass
class StorageEntry:
    """One storage. kind: see memory_attribution; it may change after the allocation. phase: of the allocation."""

    bytes: int
    kind: str
    phase: str
    preexisting: bool  # allocated before the log saw it: an argument of an operation, or a state of the model
    recomputed: bool = False  # allocated while activation checkpointing runs a forward pass again
    paged: bool = False  # bitsandbytes' managed memory, outside the device's allocator
    stays_allocated: bool = False  # something that is not seen still holds its memory when it is freed
    stream: int = 0  # on which it was allocated; 0: the default one, or not known


class StepPhase:
    """forward, backward or step (clipping belongs to the step): what runs now.

    updates_weight: a weight is updated inside the backward pass, which is a step, too.
    """

    def __init__(self) -> None:
        self.latest = "forward"  # as of the last call of `current`
        self.updates_weight = False

    def begin_forward(self) -> None:
        """A forward pass begins, unless checkpointing runs it again in the backward pass."""
        if self.current() != "backward":
            self.latest = "forward"

    def current(self) -> str:
        if self.updates_weight:
            self.latest = "step"
        elif current_graph_task_id() != -1:
            self.latest = "backward"
        elif self.latest == "backward":
            self.latest = "step"  # until a forward pass begins
        return self.latest


class StorageLog:
    """Allocations (+1) and frees (-1) of storages on a type of device, in order. step_start: index of the last step.

    on_allocation: called with each new entry, if it is set. current_stream: the number of the stream on which memory is
    allocated.
    """

    def __init__(self, device_type: str):
        self.events: list[tuple[StorageEntry, int]] = []
        self.step_start = 0
        self.phase = StepPhase()
        self.on_allocation: Callable[[StorageEntry], None] | None = None
        self.current_stream: Callable[[], int] = int
        self._device_type = device_type
        self._alive: dict[int, tuple[weakref.ref, StorageEntry]] = {}  # by storage_key

    def record(self, tensor: torch.Tensor, kind: str, preexisting: bool = False) -> StorageEntry | None:
        """The entry of a tensor's storage, which is added with `kind` if it is new. None: not on this device."""
        if tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        known_entry = self._entry_of_storage(storage)
        if known_entry is not None:
            return known_entry
        if storage.device.type == self._device_type:
            return self.add(storage, kind, preexisting)
        if getattr(tensor, "is_paged", False):  # bitsandbytes' paged optimizer states say they are on the CPU
            return self.add(storage, kind, preexisting, paged=True)
        return None

    def add(
        self, storage: torch.UntypedStorage, kind: str, preexisting: bool = False, paged: bool = False
    ) -> StorageEntry:
        """Log the allocation of a storage, and its free when that happens."""
        key = storage_key(storage)
        entry = StorageEntry(storage.nbytes(), kind, self.phase.current(), preexisting, paged=paged)
        entry.stream = self.current_stream()
        self.events.append((entry, +1))

        def freed(_: weakref.ref) -> None:
            self.events.append((entry, -1))
            self._forget(key, entry)

        self._alive[key] = (weakref.ref(storage, freed), entry)
        if self.on_allocation is not None:
            self.on_allocation(entry)
        return entry

    def add_passing(self, tensor: torch.Tensor, kind: str) -> None:
        """Log a storage of which only this moment is known as allocated and freed, unless the log knows it."""
        storage = tensor.untyped_storage()
        if self.entry_of(tensor) is None and storage.device.type == self._device_type:
            entry = self.add(storage, kind)
            self.events.append((entry, -1))
            # Its end is not logged again; but the next storage may have its address.
            key = storage_key(storage)
            self._alive[key] = (weakref.ref(storage, lambda _: self._forget(key, entry)), entry)

    def add_passing_sizes(self, sizes: Iterable[int], kind: str, at_once: int) -> None:
        """Log storages of so many bytes that are no more: allocated in this order, at most `at_once` at a time."""
        alive: deque[StorageEntry] = deque()
        for size in sizes:
            if len(alive) == at_once:
                self.events.append((alive.popleft(), -1))
            alive.append(StorageEntry(size, kind, self.phase.current(), preexisting=False))
            self.events.append((alive[-1], +1))
        self.events.extend((entry, -1) for entry in alive)

    def _forget(self, key: int, entry: StorageEntry) -> None:
        if self._alive.get(key, (None, None))[1] is entry:
            del self._alive[key]

    def resized(self, storage: torch.UntypedStorage, bytes_before: int, kind: str) -> None:
        """A storage has changed its size: the old memory is freed, and new memory of `kind` is allocated."""
        if storage.device.type != self._device_type or storage.nbytes() == bytes_before:
            return
        entry = self._entry_of_storage(storage)
        if entry is not None:
            self.events.append((entry, -1))
        self.add(storage, kind)

    def entry_of(self, tensor: torch.Tensor) -> StorageEntry | None:
        """The entry of a tensor's storage, if it has one."""
        return self._entry_of_storage(tensor.untyped_storage())

    def _entry_of_storage(self, storage: torch.UntypedStorage) -> StorageEntry | None:
        reference, entry = self._alive.get(storage_key(storage), (None, None))
        if reference is None or reference() is None:  # one that is gone had the same address
            return None
        return entry

    def move_preexisting_first(self) -> list[int]:
        """Move allocations that the last step saw late, but did not make, to the beginning of the step.

        They are preexisting storages that are still alive: DDP's buckets, input batches. (Buffers of gloo are seen
        late, too, and are freed.) Returns the indices in `events` at which they stood.
        """
        alive = {id(entry) for storage, entry in self._alive.values() if storage() is not None}
        indices = []
        moved = []
        others = []
        for index, (entry, sign) in enumerate(self.events[self.step_start :], self.step_start):
            if sign > 0 and entry.preexisting and id(entry) in alive:
                indices.append(index)
                moved.append((entry, sign))
            else:
                others.append((entry, sign))
        self.events[self.step_start :] = moved + others
        return indices

    def peak_index(self) -> int:
        """The index in `events` at which most bytes are alive in the last step."""
        live = 0
        most = 0
        peak = 0
        for index, (entry, sign) in enumerate(self.events):
            live += sign * entry.bytes
            if live > most and index >= self.step_start - 1:
                most = live
                peak = index
        return peak
