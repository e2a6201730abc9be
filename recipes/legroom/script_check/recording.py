"""What was recorded in a script's process, as the trace of a step: its storages, their origins, and its operations.

The process may have another version of torch. An operation is looked up by its name in this one's, and its arguments
are tensors without data; one that this torch lacks, or has with other arguments, is counted by the bytes of those.
Imports torch.
"""

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
DTYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
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
    operations. found: as the process wrote it (inside/legroom_inside/session.py)."""

    log: StorageLog
    origins: Mapping[int, str]
    tally: Tally
    weights: Weights
    found: dict[str, Any] = field(repr=False)
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
        launches = self.found.get("launches")
        return 0 if launches is None else max(0, launches["all"] - launches["seen"])

    @property
    def peak_phase(self) -> str | None:
        if not self.log.events:
            return None
        return self.log.events[self.log.peak_index()][0].phase


def read(found: dict[str, Any]) -> Recording:
    """The recording that a process has written."""
    log = StorageLog("cuda")
    entries, origins = {}, {}
    for number, (size, kind, phase, made_by) in found["entries"].items():
        entry = StorageEntry(size, kind, phase, preexisting=False)
        entries[int(number)] = entry
        origins[id(entry)] = made_by
    log.events = [(entries[number], sign) for number, sign in found["events"]]
    log.step_start = found["step_start"]
    trained = Weights(stored_bytes=found["parameters"])
    for elements, dtype in found["trained"]:
        trained.trained += elements
        if dtype == "torch.float32":
            trained.trained_in_fp32 += elements
    made = Recording(log, _Origins(origins), Tally(), trained, found)
    _count_operations(made)
    _count_unseen_kernels(made)
    return made


class _Origins(dict):
    def __missing__(self, _: int) -> str:
        return ""


def _count_operations(made: Recording) -> None:
    """Enter the operations of the step into the tally, and the FLOPs that its model needs."""
    flops: int | None = 0
    is_same_torch = made.found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    for phase, caller, module, call, times in made.found["operations"]:
        name, args, kwargs, result = call
        if name.split(".")[1] in WITHOUT_WORK:
            continue
        func = _operation(name)
        moved = _copy_between_host_and_device(name, args, result)
        if moved is not None:
            made.tally.put(moved, phase, times)
            continue
        arguments, settings, results = _value(args), dict(_value(kwargs)), _value(result)[0]
        signature = (name, repr(args), repr(result))
        if func is None:
            made.tally.put(_unknown(name, arguments, results), phase, times)
            made.tally.unknown.add(name.split(".")[1])
            continue
        try:
            for _ in range(times):
                made.tally.add(func, arguments, settings, results, phase, signature, caller, module)
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError):
            if is_same_torch:
                raise
            made.tally.put(_unknown(name, arguments, results), phase, times)  # it had other arguments there
            made.tally.unknown.add(name.split(".")[1])
            continue
        if phase == "forward" and flops is not None:
            try:
                own = operation_flops(func, arguments, settings, results)
                flops += times * (own + backward_flops(func, arguments, own)) if own else 0
            except (AssertionError, TypeError, ValueError, AttributeError, IndexError):
                flops = None
    made.model_flops = flops or None


def _count_unseen_kernels(made: Recording) -> None:
    """Enter the launches of kernels whose work is not known. A replay of a CUDA graph is one call of the host, however
    many kernels it has."""
    unseen = made.unseen_kernels
    if unseen == 0:
        return
    made.tally.put(Operation(UNSEEN, ops.ELEMENTWISE), "forward", unseen)
    replays = made.found["launches"]["graphs"]
    if replays:
        made.tally.calls["forward"] -= unseen - min(unseen, replays)


def _operation(name: str) -> Any:
    """torch's operation of a name as "aten.mm.default"; None: this torch has none of that name."""
    namespace, _, rest = name.partition(".")
    namespace = namespace.removesuffix("_autograd")  # which torch registers where the script imports them
    packet, _, overload = rest.rpartition(".")
    found = getattr(torch.ops, namespace, None)
    for part in (packet, overload):
        try:
            found = getattr(found, part, None)
        except (AttributeError, RuntimeError):
            return None
    return found if isinstance(found, OPERATION) else None


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
        return [_value(each) for each in rest[0]]
    return None if rest[0] != "dtype" else DTYPES.get(rest[1])


def _copy_between_host_and_device(name: str, args: Any, result: Any) -> Operation | None:
    """A copy whose source and target are not on the same device; None: it is something else."""
    if name.split(".")[1:2] != [] and name.split(".")[1] not in COPIES_TO_OTHERS:
        return None
    tensors = [each for each in (*args[1], *result[1]) if isinstance(each, list) and each[0] == "tensor"]
    if len({each[4] for each in tensors}) < 2:
        return None
    _, shape, _, dtype, _ = tensors[-1]
    elements = 1
    for size in shape:
        elements *= size
    size = torch.empty(0, dtype=DTYPES.get(dtype, torch.float32)).element_size()
    return Operation(name.split(".")[1], ops.HOST_COPY, bytes=elements * size, elements=elements)


def _unknown(name: str, arguments: Any, results: Any) -> Operation:
    """An operation that this torch does not know: it reads its arguments and writes its results once."""
    tensors = tensors_in(arguments) + tensors_in((results,))
    moved = sum(each.numel() * each.element_size() for each in tensors)
    elements = max((each.numel() for each in tensors), default=0)
    return Operation(name, ops.ELEMENTWISE, bytes=moved, elements=elements)
