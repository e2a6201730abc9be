"""The tape: a ledger of a step on a fake device, with what CUDA's kernels ask for behind torch's back.

Entered once for each step, so that it holds all that happened since the model was built; its parts are
those of the last step. It also tallies the operations, for the time that they would take.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, replace

import torch

from recipes.foresight.fake_gpu import attention
from recipes.foresight.fake_gpu.device import FakeDevice
from recipes.foresight.fake_gpu.op_cache import signed
from recipes.foresight.speed.operation_names import PRODUCTS
from recipes.foresight.speed.operations import Tally
from recipes.measure.memory_ledger import OTHER, MemoryLedger, Storage, is_fake
from recipes.units import MIB


@dataclass(frozen=True)
class Hidden:
    """Memory that an operation takes and no tensor shows. place: in the log. kept: until the process ends."""

    place: int
    bytes: int
    kept: bool


def workspace_bytes(capability: tuple[int, int]) -> int:
    """cuBLAS's workspace for one handle: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize."""
    return 32 * MIB if capability >= (9, 0) else 8_519_680


class OpTrace(MemoryLedger):
    """Use as a Ledger, several times. capability: of the GPU; None: of a CPU, where nothing is hidden."""

    def __init__(self, model, optimizer, device, capability: tuple[int, int] | None):
        super().__init__(model, optimizer, device)
        self.capability, self.fake = capability, FakeDevice.current
        self.hidden: list[Hidden] = []
        self.starts: list[int] = []  # where in the log each step begins
        self.passes: list[Tally] = []  # of the last step: a tally for each forward and backward pass
        self._seen: dict[tuple, object] = {}  # for all tallies: an operation is looked at once
        self.tally = Tally(seen=self._seen)  # of the last step: all that is in no pass
        self.paged: dict[int, Storage] = {}  # states that the driver pages: not the allocator's
        self._handles: set[str] = set()  # the threads that have a cuBLAS handle

    def __enter__(self):
        self.starts.append(len(self.log))
        self.passes, self.tally, self.flops = [], Tally(seen=self._seen), 0
        super().__enter__()
        new_pass = lambda *_: self.passes.append(Tally(seen=self._seen))  # noqa: E731
        self._hooks.append(self.model.register_forward_pre_hook(new_pass, prepend=True))
        return self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if result is NotImplemented or is_fake(types):
            return result
        phase = self._phase  # the ledger has just asked
        tally = self.tally if phase == "step" or not self.passes else self.passes[-1]
        tally.add(func, args, kwargs or {}, result, phase, self._signature)
        if self.capability is not None:
            self._hide(func, args, phase)
        elif func._opname == "_reduce_scatter_base_":  # on a CPU by gloo, in a copy of what is sent; NCCL needs none
            self._see(self.fake.compute(torch.ops.aten.empty_like.default, (args[1],), {}), OTHER)
        return result

    # The device tells of its operations: a mode of one's own for that would take as long as all the rest.

    def _watch(self) -> None:
        self.fake.watcher = self

    def _look_away(self, *error) -> None:
        self.fake.watcher = None

    def _given(self, func, args, kwargs) -> list[torch.Tensor]:
        self._signature, self._arguments = signed(func, args, kwargs)
        return self._arguments

    def _run(self, func, args, kwargs):
        return self.fake.compute(func, args, kwargs, self._signature, self._arguments)

    def hold(self, tensor: torch.Tensor) -> None:
        """Count a tensor that is on the device without being used."""
        self._mark(tensor, OTHER)

    def _enter(self, storage, kind, given):
        entry = super()._enter(storage, kind, given)
        if storage.device.type != self.device.type:
            self.paged[id(entry)] = entry
        return entry

    def _put_first(self, alive):
        late = super()._put_first(alive)
        self.hidden = [
            replace(one, place=one.place + sum(index >= one.place for index in late))
            if one.place >= self._start
            else one
            for one in self.hidden
        ]
        return late

    def _hide(self, func, args, phase: str) -> None:
        name = func._opname
        if name in PRODUCTS:
            # The backward pass has a thread of its own, and each thread a handle of its own.
            thread = "backward" if phase == "backward" else "main"
            if thread not in self._handles:
                self._handles.add(thread)
                self.hidden.append(Hidden(len(self.log), workspace_bytes(self.capability), kept=True))
        elif name.endswith("attention_backward"):
            size = attention.hidden_bytes(name, args[1], args[2])
            self.hidden.append(Hidden(len(self.log), size, kept=False))

    def step_tally(self, steps: int) -> Tally:
        """The operations of one optimizer step of `steps` micro-batches. Those that were not run are as the last one, or
        where three were, as the second: the last alone sends gradients to the other ranks.
        """
        repeated = 1 if len(self.passes) == 3 else len(self.passes) - 1
        whole = Tally(
            {phase: Counter(counts) for phase, counts in self.tally.counts.items()},
            Counter(self.tally.calls),
            set(self.tally.unknown),
        )
        for index, part in enumerate(self.passes):
            times = 1 + (steps - len(self.passes)) * (index == repeated)
            for phase, counts in part.counts.items():
                into = whole.counts.setdefault(phase, Counter())
                for operation, count in counts.items():
                    into[operation] += count * times
            for phase, calls in part.calls.items():
                whole.calls[phase] += calls * times
            whole.unknown |= part.unknown
        return whole

    # --- for the allocator ---

    def events(self, repeats: int = 1) -> list[tuple[int, int]]:
        """(key, bytes) for a request and (key, -1) for its end, in order; the last step `repeats` times.

        What a step leaves behind (its loss) takes in the next one the place of what the step before left.
        """
        made: list[tuple[int, int]] = []
        keys: dict[int, int] = {}  # of a storage that is alive, by its identity
        left: dict[int, list[int]] = {}  # bytes -> keys of what the last step left
        fresh = itertools.count()

        def ask(size: int) -> int:
            made.append((key := next(fresh), size))
            return key

        def play(first: int, hidden: list[Hidden]) -> None:
            due = deque(hidden)
            for place in range(first, len(self.log) + 1):
                while due and due[0].place <= place:
                    key = ask(due[0].bytes)
                    if not due.popleft().kept:
                        made.append((key, -1))
                entry, sign = self.log[place] if place < len(self.log) else (None, 0)
                if entry is None or id(entry) in self.paged:
                    continue
                if sign > 0:
                    if id(entry) not in keys:
                        keys[id(entry)] = ask(entry.bytes)
                elif id(entry) in keys:
                    made.append((keys.pop(id(entry)), -1))
                elif left.get(entry.bytes):
                    made.append((left[entry.bytes].pop(), -1))

        start = self.starts[-1]
        play(0, self.hidden)
        for _ in range(repeats - 1):
            left.clear()
            for entry, sign in self.log[start:]:
                if sign > 0 and id(entry) in keys and not entry.given:  # what it found, the next one finds too
                    left.setdefault(entry.bytes, []).append(keys.pop(id(entry)))
            play(start, [one for one in self.hidden if one.place >= start and not one.kept])
        return made
