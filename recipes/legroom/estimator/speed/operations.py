"""The work that a step gives to a device, operation by operation: FLOPs, bytes, and how many kernels.

`Tally.add` is called for each operation that torch dispatches. Each distinct call is classified once and then counted.
Operations that only change a tensor's shape cost the host a call and the device nothing. Only shapes, dtypes and
strides are read, so tensors without data will do.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from legroom.compat import torch_distributed_private, torch_private
from legroom.estimator.ledger.op_flops import attended_share, operation_flops, tensors_in
from legroom.estimator.speed import operation_names as ops

FUSIBLE = (ops.ELEMENTWISE, ops.REDUCTION, ops.COPY)  # torch.compile makes few kernels of them
OPTIMIZER_PHASE = "step"
AWAITED_COLLECTIVES = ("alltoall", "all_to_all")  # part of the name: whose results the next operation needs
# Part of the name, as reduce is of all_reduce: those that move data.
MOVING_COLLECTIVES = ("gather", "scatter", "broadcast", "reduce", "recv", *AWAITED_COLLECTIVES)


class Group(NamedTuple):
    """The process group of a collective in another process: how many ranks, every stride-th."""

    ranks: int
    stride: int


@dataclass(frozen=True)
class Operation:
    """A distinct call of an operation.

    kind: its class (MATMUL, ATTENTION, ...; a convolution is a MATMUL). dtype: of its arithmetic; tf32 of a convolution
    that may use it. flops, bytes (read plus written): of one call, all kernels together. kernels: how many one call
    launches. shape: (batch, M, N, K) of a matrix product, (ranks, stride) of a collective, whose bytes are those of the
    whole tensor and whose group is every stride-th rank, (rows, length) of a softmax or a normalisation; else ().
    """

    name: str
    kind: str
    dtype: str = "fp32"
    flops: int = 0
    bytes: int = 0
    kernels: int = 1
    shape: tuple[int, ...] = ()
    elements: int = field(default=0, compare=False)  # of its largest tensor


@dataclass(frozen=True)
class _OperationClass:
    """What the name and the schema of an operation say, before its arguments are known. kind "": no kernel."""

    name: str
    kind: str
    written: tuple[int, ...]  # indices of the arguments that it writes to
    known: bool = True  # False: its bytes are estimated from its arguments


@dataclass
class Tally:
    """The operations of a step with their numbers of calls, by phase; and the calls of the host, views included."""

    counts: dict[str, Counter] = field(default_factory=dict)  # phase -> operation -> calls
    calls: Counter = field(default_factory=Counter)  # phase -> calls by the host
    places: dict[str, Counter] = field(default_factory=dict)  # phase -> (module, operation) -> calls; where known
    unknown: set[str] = field(default_factory=set)  # names of operations whose bytes are estimated
    waits: bool = False  # nothing is computed while ranks send
    awaited_groups: frozenset[tuple[int, int]] = frozenset()  # (ranks, stride) of groups whose results are awaited
    shares_experts: bool = False  # tokens travel to the experts of other ranks
    idle: float = 0.0  # for how long a rank of a pipeline waits for others, as a share of its own passes
    seen: dict = field(default_factory=dict, repr=False)  # signature -> operation; several tallies may share it

    def add(
        self,
        func: Any,
        args: Sequence,
        kwargs: Mapping,
        result: Any,
        phase: str,
        signature: Hashable,
        caller: str = "",
        module: str | None = None,
    ) -> None:
        """Count one dispatched operation.

        func: the OpOverload. phase: forward | backward | step. signature: equal for calls that are classified alike
        (`op_cache.call_signature`). caller: the phase whose calls cost the host as much, where it is another.
        module: the name of the module that runs, where it is known.
        """
        op_class = _class_of(func)
        if op_class is None:
            return
        self.calls[caller or phase] += 1
        if op_class.kind == "":
            return
        operation = self.seen.get(signature)
        if operation is None:
            operation = classify(func, args, result, kwargs)
            self.seen[signature] = operation
            if not op_class.known:
                self.unknown.add(op_class.name)
        if phase not in self.counts:
            self.counts[phase] = Counter()
        self.counts[phase][operation] += 1
        if module is not None:
            self.places.setdefault(phase, Counter())[module, operation] += 1

    def operations(self) -> Iterator[tuple[Operation, int]]:
        """Each operation of a phase with how often it runs there."""
        for counts in self.counts.values():
            yield from counts.items()

    def without_fusible(self) -> Tally:
        """The operations that torch.compile cannot join to others, each a call of the host. The optimizer's step, which
        it does not compile, is as it was."""
        tally = replace(self, counts={}, calls=Counter(self.calls), places={})
        for phase, counts in self.counts.items():
            if phase == OPTIMIZER_PHASE:
                tally.counts[phase] = Counter(counts)
                continue
            left = {operation: times for operation, times in counts.items() if operation.kind not in FUSIBLE}
            tally.counts[phase] = Counter(left)
            tally.calls[phase] = sum(left.values())
        return tally

    def put(self, operation: Operation, phase: str, times: int = 1) -> None:
        """Count an operation that was not dispatched."""
        self.counts.setdefault(phase, Counter())[operation] += times
        self.calls[phase] += times


def classify(func: Any, args: Sequence, result: Any, kwargs: Mapping | None = None) -> Operation | None:
    """A dispatched operation as an Operation; None where nothing runs on the device.

    func: a torch OpOverload, as a dispatch mode gets it. result: what it returned.
    """
    op_class = _class_of(func)
    if op_class is None or op_class.kind == "":
        return None
    kwargs = kwargs or {}
    inputs = tensors_in(args) + tensors_in(kwargs.values())
    outputs = tensors_in((result,))
    if op_class.kind == ops.COPY and len({tensor.is_cpu for tensor in inputs + outputs}) > 1:
        return Operation(op_class.name, ops.HOST_COPY, bytes=_size(outputs[0]), elements=outputs[0].numel())
    flops = 0
    shape: tuple[int, ...] = ()
    if op_class.kind in (ops.MATMUL, ops.ATTENTION):
        flops, shape = _arithmetic(func, op_class, args, kwargs, result)
    elif op_class.kind == ops.COLLECTIVE:
        shape = _group(args)
    elif any(part in op_class.name for part in ops.NORMALISATIONS) and inputs and inputs[0].dim():
        length = inputs[0].shape[-1]
        shape = (inputs[0].numel() // max(1, length), length)
    touched = inputs + outputs
    if op_class.name in ops.GATHERING:
        touched = outputs
    return Operation(
        name=op_class.name,
        kind=op_class.kind,
        dtype=_dtype(op_class, args, inputs + outputs),
        flops=flops,
        bytes=_bytes(op_class, args, inputs, outputs),
        kernels=_kernels(op_class, args),
        shape=shape,
        elements=max((tensor.numel() for tensor in touched), default=0),
    )


def _dtype(op_class: _OperationClass, args: Sequence, tensors: list[torch.Tensor]) -> str:
    """In what an operation computes. tensors: its inputs and then its outputs."""
    # The factors of a matrix product decide on its arithmetic; a tensor that is added may come before them.
    if op_class.name in ops.PRODUCTS:
        return ops.DTYPES.get(args[ops.PRODUCTS[op_class.name]].dtype, "fp32")
    if op_class.name == ops.INT8_PRODUCT:
        return "fp16"  # the table of GPUs has no figures for 8 bits; this is half of them
    dtype = "fp32"
    for tensor in tensors:
        if tensor.dtype in ops.DTYPES:
            dtype = ops.DTYPES[tensor.dtype]
            break
    if op_class.name in ops.CONVOLUTIONS and dtype == "fp32" and not tensors[0].is_cpu:
        allowed = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]  # of the module's class
        if allowed.fp32_precision == "tf32":
            return "tf32"
    return dtype


@functools.cache
def _class_of(func: Any) -> _OperationClass | None:
    """None: the host does nothing either (a property of a tensor, a profiler's mark)."""
    namespace, _, full = torch_private.schema(func).name.partition("::")
    if namespace in ("prim", "profiler"):
        return None
    name = full.rstrip("_")
    indices = []
    for index, argument in enumerate(torch_private.schema(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            indices.append(index)
    written = tuple(indices)
    if func.is_view or name in ops.NO_KERNEL:
        return _OperationClass(full, "", written)
    if namespace in ("c10d", "_c10d_functional"):
        if any(part in name for part in MOVING_COLLECTIVES):
            return _OperationClass(full, ops.COLLECTIVE, written)
        return _OperationClass(full, "", written)
    if "scaled_dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
        return _OperationClass(full, ops.ATTENTION, written)
    if name.startswith(ops.GROUPED_PRODUCTS) or name in {*ops.PRODUCTS, *ops.LINEAR_PRODUCTS, *ops.CONVOLUTIONS}:
        return _OperationClass(name, ops.MATMUL, written)
    if name.startswith("_fused_") or (name.startswith("_foreach_") and name not in ops.REDUCTIONS | ops.COPIES):
        return _OperationClass(full, ops.OPTIMIZER, written)
    if name in ops.REDUCTIONS or any(part in name for part in ops.NORMALISATIONS):
        return _OperationClass(name, ops.REDUCTION, written)
    if name in ops.COPIES:
        return _OperationClass(name, ops.COPY, written)
    if "optimizer_update" in name:  # bitsandbytes
        return _OperationClass(full, ops.OPTIMIZER, written)
    return _OperationClass(name, ops.ELEMENTWISE, written, known=namespace in ("aten", "fsdp", "bitsandbytes"))


def _size(tensor: torch.Tensor) -> int:
    """The bytes that reading a tensor moves. A dimension that is expanded (stride 0) is in memory once."""
    elements = math.prod(size for size, stride in zip(tensor.shape, tensor.stride()) if stride or not size)
    return elements * tensor.element_size()


def _bytes(op_class: _OperationClass, args: Sequence, inputs: list, outputs: list) -> int:
    """The bytes that one call reads and writes."""
    if op_class.kind == ops.COLLECTIVE:  # of the shard and the whole tensor, the whole
        return max(_sizes(tensors_in((value,))) for value in (*args, outputs))
    if op_class.name in ops.GATHERING:
        return 2 * _sizes(outputs)
    targets = [args[index] for index in op_class.written if index < len(args)]
    in_place = _sizes(tensors_in(targets))
    written = in_place or _sizes(outputs)
    read = _sizes(inputs)
    if op_class.name in ops.OVERWRITING:  # it does not read what it writes over
        read -= in_place
    return read + written


def _sizes(tensors: list[torch.Tensor]) -> int:
    return sum(_size(tensor) for tensor in tensors)


def _arithmetic(
    func: Any, op_class: _OperationClass, args: Sequence, kwargs: Mapping, result: Any
) -> tuple[int, tuple[int, ...]]:
    """(FLOPs, (batch, M, N, K) of a matrix product)."""
    if op_class.name in ops.LINEAR_PRODUCTS:
        columns, depth = args[1].shape
        return 2 * args[0].numel() * columns, (1, args[0].numel() // depth, columns, depth)
    flops = operation_flops(func, args, kwargs, result)
    if op_class.name in ops.PRODUCTS:
        first = ops.PRODUCTS[op_class.name]
        left, right = args[first : first + 2]
        batch = left.shape[0] if left.dim() == 3 else 1
        return flops, (batch, left.shape[-2], right.shape[-1], left.shape[-1])
    if op_class.kind == ops.ATTENTION:
        flops = round(flops * attended_share(func, args, kwargs))
    return flops, ()


def _group(args: Sequence) -> tuple[int, ...]:
    """(ranks, stride) of a collective's process group, whose arguments have it as an object of torch, its name, or as
    another process has described it."""
    for argument in args:
        if isinstance(argument, Group):
            return argument
    groups = [torch_distributed_private.group_of(argument) for argument in args]
    groups = [group for group in groups if group is not None]
    names = [argument for argument in args if isinstance(argument, str)]
    if groups:
        group = groups[0]
    elif names:
        group = torch_distributed_private.group_by_name(names[-1])
    else:
        return ()
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) == 1:
        return 1, 1
    return len(ranks), ranks[1] - ranks[0]


def _kernels(op_class: _OperationClass, args: Sequence) -> int:
    """How many kernels one call launches."""
    if not op_class.name.startswith(("_foreach_", "_fused_")):
        return ops.KERNELS.get(op_class.name, 1)
    lists = [argument for argument in args if isinstance(argument, list | tuple) and tensors_in(argument)]
    if not lists:
        return 1
    chunks = sum(math.ceil(tensor.numel() / ops.CHUNK) for tensor in lists[0])
    tensors = ops.TENSORS_PER_LAUNCH[min(len(lists), len(ops.TENSORS_PER_LAUNCH)) - 1]
    return max(math.ceil(chunks / ops.CHUNKS_PER_LAUNCH), math.ceil(len(lists[0]) / tensors))
