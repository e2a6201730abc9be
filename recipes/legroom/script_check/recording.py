"""What was recorded in a script's process, as the trace of a step: its storages, their origins, and its operations.

The process may have another version of torch. An operation is looked up by its name in this one's, and its arguments
are tensors without data; one that this torch lacks, or has with other arguments, is counted by the bytes of those.
Imports torch.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from legroom.estimator.ledger.op_flops import backward_flops, operation_flops, tensors_in
from legroom.estimator.ledger.storage_log import StorageEntry, StorageLog
from legroom.estimator.speed import operation_names as ops
from legroom.estimator.speed.operations import Group, Operation, Tally
from legroom.units import PARTS

OPERATION = type(torch.ops.aten.add.Tensor)  # what torch calls an operation with its overload
DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
WITHOUT_WORK = ("_wrap_tensor_autograd",)
COPIES_TO_OTHERS = ("_to_copy", "copy_", "_copy_from")
UNSEEN = "kernels that no operation of torch shows"


@dataclass
class Weights:
    """What is trained, as far as the speed depends on it. numbers of elements."""

    trained: int = 0
    trained_in_fp32: int = 0
    stored_bytes: int = 0  # of all weights, frozen ones too


@dataclass
class Recording:
    """A step of a script. log, origins: as `explain.largest` and the timeline of a page read them. tally: of all its
    operations. recorded: as the process wrote it (inside/legroom_inside/session.py)."""

    log: StorageLog
    origins: Mapping[int, str]
    tally: Tally
    weights: Weights
    recorded: dict[str, Any] = field(repr=False)
    model_flops: int | None = None

    def parts(self) -> dict[str, int]:
        """The bytes of each part at the moment of most live tensors; they sum to `peak_tensor_bytes`."""
        peak = self.log.peak_index()
        live: dict[str, int] = {}
        for entry, sign in self.log.events[: peak + 1]:
            live[entry.kind] = live.get(entry.kind, 0) + sign * entry.bytes
        parts = {part: live.get(part, 0) for _, part in PARTS}
        parts["parameters"] += live.get("weight_copies", 0)
        return parts

    @property
    def unseen_kernels(self) -> int:
        """How many kernels of the step were started by no operation of torch: by compiled code, or by the script."""
        launches = self.recorded.get("launches")
        if launches is None:
            return 0
        return max(0, launches["all"] - launches["seen"])

    @property
    def peak_phase(self) -> str | None:
        if not self.log.events:
            return None
        return self.log.events[self.log.peak_index()][0].phase


def read(recorded: dict[str, Any]) -> Recording:
    """The recording that a process has written."""
    log = StorageLog("cuda")
    entries = {}
    origins: defaultdict[int, str] = defaultdict(str)
    for number, (size, kind, phase, origin) in recorded["entries"].items():
        entry = StorageEntry(size, kind, phase, preexisting=False)
        entries[int(number)] = entry
        origins[id(entry)] = origin
    log.events = [(entries[number], sign) for number, sign in recorded["events"]]
    log.step_start = recorded["step_start"]
    weights = Weights(stored_bytes=recorded["parameters"])
    for elements, dtype in recorded["trained"]:
        weights.trained += elements
        if dtype == "torch.float32":
            weights.trained_in_fp32 += elements
    recording = Recording(log, origins, Tally(), weights, recorded)
    _count_operations(recording)
    _count_unseen_kernels(recording)
    return recording


def _count_operations(recording: Recording) -> None:
    """Enter the operations of the step into the tally, and the FLOPs that its model needs."""
    tally = recording.tally
    flops: int | None = 0
    is_same_torch = recording.recorded["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    for phase, caller, module, call, times in recording.recorded["operations"]:
        name, described_args, described_kwargs, described_result = call
        short_name = name.split(".")[1]
        if short_name in WITHOUT_WORK:
            continue
        copy = _copy_between_host_and_device(short_name, described_args, described_result)
        if copy is not None:
            tally.put(copy, phase, times)
            continue
        func = _operation(name)
        args = _value(described_args)
        kwargs = dict(_value(described_kwargs))
        result = _value(described_result)[0]
        signature = (name, repr(described_args), repr(described_result))
        is_known = func is not None
        if is_known:
            try:
                for _ in range(times):
                    tally.add(func, args, kwargs, result, phase, signature, caller, module)
            except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError):
                if is_same_torch:
                    raise
                is_known = False  # it has other arguments in the script's torch
        if not is_known:
            tally.put(_unknown(name, args, result), phase, times)
            tally.unknown.add(short_name)
        elif phase == "forward" and flops is not None:
            try:
                forward = operation_flops(func, args, kwargs, result)
                if forward:
                    flops += times * (forward + backward_flops(func, args, forward))
            except (AssertionError, TypeError, ValueError, AttributeError, IndexError):
                flops = None
    recording.model_flops = flops or None


def _count_unseen_kernels(recording: Recording) -> None:
    """Enter the launches of kernels whose work is not known. A replay of a CUDA graph is one call of the host, however
    many kernels it has."""
    unseen = recording.unseen_kernels
    if unseen == 0:
        return
    recording.tally.put(Operation(UNSEEN, ops.ELEMENTWISE), "forward", unseen)
    replays = recording.recorded["launches"]["graphs"]
    if replays:
        recording.tally.calls["forward"] -= unseen - min(unseen, replays)


def _operation(name: str) -> Any:
    """torch's operation of a name as "aten.mm.default"; None: this torch has none of that name."""
    namespace, _, rest = name.partition(".")
    namespace = namespace.removesuffix("_autograd")  # which torch registers where the script imports them
    packet, _, overload = rest.rpartition(".")
    try:
        operation = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, RuntimeError):
        return None
    return operation if isinstance(operation, OPERATION) else None


def _value(described: Any) -> Any:
    """An argument as it was described."""
    if not isinstance(described, list):
        return described
    kind, *rest = described
    if kind == "tensor":
        shape, strides, dtype, _ = rest
        known = DTYPES.get(dtype, torch.float32)
        if len(strides) != len(shape):
            return torch.empty(shape, dtype=known, device="meta")
        return torch.empty_strided(shape, strides, dtype=known, device="meta")
    if kind == "group":
        return Group(*rest)
    if kind == "list":
        return [_value(element) for element in rest[0]]
    if rest[0] == "dtype":
        return DTYPES.get(rest[1])
    return None


def _copy_between_host_and_device(name: str, args: Any, result: Any) -> Operation | None:
    """A copy whose source and target are not on the same device; None: it is something else."""
    if name not in COPIES_TO_OTHERS:
        return None
    tensors = [value for value in (*args[1], *result[1]) if isinstance(value, list) and value[0] == "tensor"]
    devices = {device for _, _, _, _, device in tensors}
    if len(devices) < 2:
        return None
    _, shape, _, dtype, _ = tensors[-1]
    elements = math.prod(shape)
    itemsize = DTYPES.get(dtype, torch.float32).itemsize
    return Operation(name, ops.HOST_COPY, bytes=elements * itemsize, elements=elements)


def _unknown(name: str, args: Any, result: Any) -> Operation:
    """An operation that this torch does not know: it reads its arguments and writes its results once."""
    tensors = tensors_in(args) + tensors_in((result,))
    moved_bytes = sum(tensor.nbytes for tensor in tensors)
    elements = max((tensor.numel() for tensor in tensors), default=0)
    return Operation(name, ops.ELEMENTWISE, bytes=moved_bytes, elements=elements)
