"""The trace of a training step on the fake device: its memory ledger, its operations, and workspaces of CUDA's kernels.

From it follow the requests to CUDA's caching allocator (`allocator_events`) and the operations for the roofline
(`step_tally`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch

from legroom.compat.torch_private import op_name
from legroom.estimator.fake_gpu import attention, backend, reductions
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.fake_storages import is_fake
from legroom.estimator.ledger.kinds import COPY, OTHER, PARAMETER
from legroom.estimator.ledger.memory_ledger import MemoryLedger
from legroom.estimator.ledger.op_flops import tensors_in
from legroom.estimator.ledger.storage_log import StorageLog
from legroom.estimator.memory.allocator import Request
from legroom.estimator.speed.operation_names import PRODUCTS
from legroom.estimator.speed.operations import Tally
from legroom.units import MIB

REPEATS = 3  # of the last step in the allocator: then nothing new is reserved


@dataclass(frozen=True)
class Workspace:
    """Memory that a kernel allocates and that no tensor shows.

    index: in the log, before which it is allocated. sizes: of its blocks, in bytes, in the order of their allocation.
    kept: until the process ends, instead of until the kernel ends.
    """

    index: int
    sizes: tuple[int, ...]
    kept: bool

    @property
    def bytes(self) -> int:
        return sum(self.sizes)


def cublas_workspace_bytes(capability: tuple[int, int]) -> int:
    """cuBLAS's workspace of one handle: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize."""
    return 32 * MIB if capability >= (9, 0) else 8_519_680


class OpTrace:
    """Use as `with trace: step()` once for each step; parts, tallies and `log.step_start` are those of the last step.

    fake: the device; without a compute capability it is the CPU, which has no workspaces. model, optimizer: as for the
    MemoryLedger. record_origins: also record which module and operation made each tensor (`origins`). before: a trace
    that has followed everything until now, and which this one continues.
    """

    def __init__(
        self,
        fake: FakeDevice,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        record_origins: bool = False,
        before: OpTrace | None = None,
    ):
        self.fake = fake
        self.model = model
        log = None
        self.workspaces: list[Workspace] = []
        self._threads_with_handle: set[str] = set()  # of cuBLAS
        if before is not None:
            log = before.log
            self.workspaces = before.workspaces
            self._threads_with_handle = before._threads_with_handle
        self.ledger = MemoryLedger(model, optimizer, fake.device, record_origins, log)
        self.log = self.ledger.log
        self.origins = self.ledger.origins
        if fake.capability is not None:
            self.log.current_stream = lambda: backend.MODULE.current_stream().number
        self.passes: list[Tally] = []  # a tally for each micro-batch: its forward and its backward pass
        self._seen: dict[Any, Any] = {}  # shared by all tallies: an operation is classified once
        self.tally = Tally(seen=self._seen)  # of the operations outside the passes
        # Of the latest operation: freed as the next one begins at the earliest.
        self._arguments: list[torch.Tensor] = []
        self._contexts = contextlib.ExitStack()
        self.host_log: StorageLog | None = None  # of tensors without values in the host's memory, where it is asked for
        self.aside = False  # the forward pass is an evaluation's, which is no part of every step: its time is left out

    # --- during the step ---

    def before(self, func: Any, tensors: list[torch.Tensor]) -> None:
        self._arguments = tensors
        self._log_host(tensors, PARAMETER, preexisting=True)
        self.ledger.before(func, tensors)

    def after(self, func: Any, args: Any, kwargs: Any, result: Any, signature: Hashable) -> None:
        if self.aside and self.log.phase.current() == "forward":
            return self.ledger.attribution.record_result(func, args, result, "forward")
        self.ledger.after(func, args, kwargs, result, signature)
        phase = self.log.phase.latest
        tally = self.tally
        if self.passes and phase != "step":
            tally = self.passes[-1]
        caller = phase
        if phase == "backward" and torch.is_grad_enabled():  # checkpointing runs the forward pass again, in Python
            caller = "forward"
        module = None if self.origins is None else self.origins.module
        tally.add(func, args, kwargs, result, phase, signature, caller, module)
        if self.fake.capability is not None:
            self._add_workspace(func, args, kwargs, result, phase)
        elif op_name(func) == "_reduce_scatter_base_":  # gloo, on a CPU, copies its input; NCCL does not
            copy = self.fake.compute(torch.ops.aten.empty_like.default, args[1])
            self.log.record(copy, OTHER)
        if self.host_log is not None:
            kind = COPY if op_name(func) == "_to_copy" else OTHER
            self._log_host(tensors_in((result,)), kind)

    def _log_host(self, tensors: list[torch.Tensor], kind: str, preexisting: bool = False) -> None:
        """Log the tensors among these that lie in the host's memory beside a GPU, where that is asked for."""
        if self.host_log is None:
            return
        for tensor in tensors:
            if tensor.is_cpu and is_fake(tensor):
                self.host_log.record(tensor, kind, preexisting)

    def on_subclass(self, func: Any) -> None:
        self.ledger.on_subclass(func)

    def _add_workspace(self, func: Any, args: Any, kwargs: Any, result: Any, phase: str) -> None:
        name = op_name(func)
        sizes: tuple[int, ...] = ()
        if name in PRODUCTS:
            # On a GPU the backward pass runs in a thread of its own, and each thread has a cuBLAS handle.
            thread = "backward" if phase == "backward" else "main"
            if thread not in self._threads_with_handle:
                self._threads_with_handle.add(thread)
                size = cublas_workspace_bytes(self.fake.capability or (0, 0))
                self.workspaces.append(Workspace(len(self.log.events), (size,), kept=True))
        elif name.endswith("attention_backward"):
            begins = args[6] if args[1].dim() == 3 else None  # of packed rows
            sizes = attention.backward_workspaces(name, args[1], args[2], begins)
        elif name in ("mse_loss", "smooth_l1_loss") and not result.dim():  # the loss of each element, once more
            sizes = (result.untyped_storage().nbytes(),)
        else:
            threads = self.fake.threads_per_multiprocessor
            sizes = reductions.buffers_of(func, args, kwargs, threads, self.fake.multiprocessors)
        if sizes:
            self.workspaces.append(Workspace(len(self.log.events), sizes, kept=False))

    # --- around the step ---

    def __enter__(self) -> OpTrace:
        self.passes = []
        self.tally = Tally(seen=self._seen)
        self.ledger.model_flops = 0
        with contextlib.ExitStack() as contexts:
            self.ledger.begin_step()
            if self.host_log is not None:
                self.host_log.step_start = len(self.host_log.events)
            contexts.callback(self._end_ledger_step)
            contexts.enter_context(self.fake.observed_by(self))
            contexts.enter_context(self.model.register_forward_pre_hook(lambda *_: self._begin_pass(), prepend=True))
            self._contexts = contexts.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._arguments = []  # an optimizer's last operation has temporaries as large as the weights
        self._contexts.close()

    def _begin_pass(self) -> None:
        self.passes.append(Tally(seen=self._seen))

    def _end_ledger_step(self) -> None:
        moved = self.ledger.end_step()
        workspaces = []
        for workspace in self.workspaces:
            if workspace.index >= self.log.step_start:
                later = [index for index in moved if index >= workspace.index]
                workspace = replace(workspace, index=workspace.index + len(later))
            workspaces.append(workspace)
        self.workspaces = workspaces

    def hold(self, tensor: torch.Tensor) -> None:
        """Count a tensor that is on the device without being used."""
        self.ledger.attribution.mark(tensor, OTHER)

    # --- after the step ---

    @property
    def paged_bytes(self) -> int:
        """Bytes of optimizer states that the driver pages between host and GPU, outside torch's allocator."""
        return sum(entry.bytes for entry, sign in self.log.events if sign > 0 and entry.paged)

    def step_tally(self, micro_batches: int) -> Tally:
        """The operations of one optimizer step of `micro_batches`.

        Micro-batches that were not run count as the last one; where three were run, as the second: the last alone sends
        gradients to the other ranks.
        """
        repeated = []
        if len(self.passes) == 3:
            repeated = [self.passes[1]]
        elif self.passes:
            repeated = [self.passes[-1]]
        return self.step_tally_of(repeated, micro_batches - len(self.passes))

    def step_tally_of(self, repeated: list[Tally], more: int) -> Tally:
        """The operations of one optimizer step in which some of the passes that were run come so many times more."""
        whole = Tally()
        for tally in (self.tally, *self.passes):
            times = 1
            if any(tally is each for each in repeated):
                times += more
            _add_counts(whole.counts, tally.counts, times)
            _add_counts(whole.places, tally.places, times)
            for phase, calls in tally.calls.items():
                whole.calls[phase] += calls * times
            whole.unknown |= tally.unknown
        return whole

    def allocator_events(self, repeats: int = REPEATS) -> list[Request]:
        """All requests to the allocator in order, the last step `repeats` times: (key, bytes), on a stream that is not
        the default one (key, bytes, stream), and (key, -1) to free.

        What a step leaves behind (its loss) is freed in the next step where that frees what the step before it left.
        """
        requests = _AllocatorRequests(self)
        requests.replay(0, self.workspaces)
        start = self.log.step_start
        for _ in range(repeats - 1):
            requests.begin_repetition()
            requests.replay(start, [space for space in self.workspaces if space.index >= start and not space.kept])
        return requests.events

    def allocator_events_of(self, ends: list[int], order: list[int]) -> list[Request]:
        """All requests of steps that are replayed in an order which begins with the first, 0.

        ends: the end of each step in the log. order: indices of steps.
        """
        requests = _AllocatorRequests(self)
        begins = [0, *ends]
        replayed = set()
        for step in order:
            first = begins[step]
            last = ends[step]
            workspaces = []
            for workspace in self.workspaces:
                is_there_already = workspace.kept and step in replayed
                if first <= workspace.index < last and not is_there_already:
                    workspaces.append(workspace)
            requests.replay(first, workspaces, last)
            replayed.add(step)
        return requests.events


def _add_counts(sums: dict[str, Counter], counts: dict[str, Counter], times: int) -> None:
    """Add counts by phase, each so many times."""
    for phase, of_phase in counts.items():
        sum_of_phase = sums.setdefault(phase, Counter())
        for key, count in of_phase.items():
            sum_of_phase[key] += count * times


class _AllocatorRequests:
    """Builds the lists of `OpTrace.allocator_events`."""

    def __init__(self, trace: OpTrace):
        self.events: list[Request] = []
        self._log = trace.log.events
        self._step_start = trace.log.step_start
        self._next_key = itertools.count()
        self._keys: dict[int, int] = {}  # id of an entry that is alive -> key
        self._left_behind: dict[int, list[int]] = {}  # bytes -> keys of storages that the last repetition left behind

    def _allocate(self, size_bytes: int, stream: int = 0) -> int:
        key = next(self._next_key)
        if stream:
            self.events.append((key, size_bytes, stream))
        else:
            self.events.append((key, size_bytes))
        return key

    def replay(self, first: int, workspaces: list[Workspace], last: int | None = None) -> None:
        """The requests of the log from index `first` to `last`, or to its end. workspaces: ordered by index."""
        pending = deque(workspaces)
        if last is None:
            last = len(self._log)
        for index in range(first, last + 1):
            while pending and pending[0].index <= index:
                workspace = pending.popleft()
                keys = [self._allocate(size) for size in workspace.sizes]
                if not workspace.kept:
                    self.events.extend((key, -1) for key in reversed(keys))
            if index == last:
                break
            entry, sign = self._log[index]
            if entry.paged or (sign < 0 and entry.stays_allocated):
                continue
            if sign > 0:
                if id(entry) not in self._keys:
                    self._keys[id(entry)] = self._allocate(entry.bytes, entry.stream)
            elif id(entry) in self._keys:
                self.events.append((self._keys.pop(id(entry)), -1))
            elif self._left_behind.get(entry.bytes):
                self.events.append((self._left_behind[entry.bytes].pop(), -1))

    def begin_repetition(self) -> None:
        """Forget the entries of the last step: the next repetition allocates them again."""
        self._left_behind.clear()
        for entry, sign in self._log[self._step_start :]:
            if sign > 0 and id(entry) in self._keys and not entry.preexisting:
                self._left_behind.setdefault(entry.bytes, []).append(self._keys.pop(id(entry)))
