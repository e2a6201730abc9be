"""What a step asks of a device, operation by operation: arithmetic, bytes, and how many kernels.

`Tally.add` is called for each operation that torch dispatches. Layers repeat, so an operation is looked
at once and counted after that; what only changes a tensor's shape costs the host a call and the device
nothing. Works on tensors that hold no data: shapes, dtypes and strides are all that is read.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass, field

import torch

from recipes.measure.memory_ledger import operation_flops, tensors_in

MATMUL, ATTENTION, REDUCTION, ELEMENTWISE, OPTIMIZER, COPY, COLLECTIVE = (
    "matmul",
    "attention",
    "reduction",
    "elementwise",
    "optimizer",
    "copy",
    "collective",
)
DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}

# Names of aten's operations without a trailing underscore, by what they are to a device.
IDLE = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "lift_fresh",
    "_unsafe_view",
    "set",
    "resize",
    "record_stream",
    "_local_scalar_dense",
    "is_same_size",
    "sym_size",
    "detach",
}
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # where the two factors stand among the arguments
REDUCTIONS = {
    "sum",
    "mean",
    "amax",
    "amin",
    "max",
    "min",
    "argmax",
    "norm",
    "linalg_vector_norm",
    "_foreach_norm",
    "var",
    "var_mean",
    "cumsum",
    "all",
    "any",
    "logsumexp",
    "nll_loss_forward",
    "nll_loss_backward",
    "topk",
    "sort",
}
NORMALISATIONS = ("softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm")  # anywhere in the name
COPIES = {
    "copy",
    "_foreach_copy",
    "_to_copy",
    "clone",
    "contiguous",
    "cat",
    "stack",
    "zero",
    "zeros",
    "zeros_like",
    "new_zeros",
    "fill",
    "ones",
    "ones_like",
    "full",
    "full_like",
    "constant_pad_nd",
    "index",
    "index_put",
    "_index_put_impl",
    "index_select",
    "index_add",
    "gather",
    "scatter",
    "scatter_add",
    "embedding",
    "embedding_dense_backward",
    "select_backward",
    "slice_backward",
    "repeat",
    "roll",
    "flip",
    "masked_fill",
    "_foreach_zero",
}
OVERWRITING = {
    "copy",
    "_foreach_copy",
    "zero",
    "_foreach_zero",
    "fill",
    "bernoulli",
    "normal",
    "uniform",
    "random",
    "exponential",
}  # write their first argument without reading it
GATHERING = {
    "embedding",
    "gather",
    "index",
    "index_select",
    "nll_loss_forward",
    "nll_loss_backward",
    "embedding_dense_backward",
    "select_backward",
    "slice_backward",
}  # read no more than they write, or less
KERNELS = {
    "native_layer_norm_backward": 2,
    "embedding_dense_backward": 4,
    "nll_loss_backward": 2,
    "linalg_vector_norm": 2,
}
# aten/src/ATen/native/cuda/MultiTensorApply.cuh: elements of a chunk, chunks of a launch, and tensors of a
# launch by the number of lists that go in together.
CHUNK, CHUNKS_A_LAUNCH, TENSORS_A_LAUNCH = 65536, 320, (110, 64, 48, 36, 30)


@dataclass(frozen=True)
class Operation:
    """One kind of call. flops and bytes (read plus written) are of one call, by all its kernels together.

    shape: (batch, M, N, K) of a product, (ranks,) of a collective, whose bytes are those of the whole tensor.
    """

    name: str
    kind: str
    dtype: str = "fp32"
    flops: int = 0
    bytes: int = 0
    kernels: int = 1
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Plan:
    """What can be said of an operation before its arguments are seen."""

    name: str
    kind: str
    written: tuple[int, ...]  # arguments that it writes to
    known: bool = True  # False: its bytes are a guess from its arguments


@dataclass
class Tally:
    """The operations of a step with how often each is called, by phase; and the host's calls."""

    counts: dict[str, Counter] = field(default_factory=dict)  # phase -> operation -> times
    calls: Counter = field(default_factory=Counter)  # phase -> calls that the host makes, views too
    unknown: set[str] = field(default_factory=set)  # operations whose cost is a guess from their bytes
    seen: dict = field(default_factory=dict, repr=False)  # signature -> operation; tallies may share it

    def add(self, func, args, kwargs, result, phase: str, signature: tuple) -> None:
        """One dispatched operation in a phase: forward | backward | step. signature: tells calls apart (`plans.sign`)."""
        plan = _plan(func)
        if plan is None:
            return
        self.calls[phase] += 1
        if plan.kind == "":
            return
        operation = self.seen.get(signature)
        if operation is None:
            operation = self.seen[signature] = classify(func, args, result, kwargs)
            if not plan.known:
                self.unknown.add(plan.name)
        if phase not in self.counts:
            self.counts[phase] = Counter()
        self.counts[phase][operation] += 1

    def put(self, operation: Operation, phase: str, times: int = 1) -> None:
        """An operation that no dispatcher has shown: a collective, or one made by hand."""
        self.counts.setdefault(phase, Counter())[operation] += times
        self.calls[phase] += times


def classify(func, args, result, kwargs=None) -> Operation | None:
    """An operation by its function, arguments and result; None where nothing runs on the device.

    func: a torch OpOverload, as a dispatch mode gets it.
    """
    plan, kwargs = _plan(func), kwargs or {}
    if plan is None or plan.kind == "":
        return None
    given, made = tensors_in(args) + tensors_in(kwargs.values()), tensors_in((result,))
    moved = _bytes(plan, args, given, made)
    flops, shape = 0, ()
    if plan.kind in (MATMUL, ATTENTION):
        flops, shape = _arithmetic(func, plan, args, kwargs, result)
    elif plan.kind == COLLECTIVE:
        shape = _ranks(args)
    floats = [tensor.dtype for tensor in given + made if tensor.dtype in DTYPES]
    # A product's factors decide on its arithmetic, and stand first or behind what it is added to.
    dtype = (
        DTYPES.get(args[PRODUCTS[plan.name]].dtype, "fp32")
        if plan.name in PRODUCTS
        else DTYPES[floats[0]]
        if floats
        else "fp32"
    )
    return Operation(plan.name, plan.kind, dtype, flops, moved, _kernels(plan, args, given), shape)


@functools.cache
def _plan(func) -> _Plan | None:
    """None: the host has nothing to do either (a property of a tensor, a profiler's mark)."""
    space, _, name = func._schema.name.partition("::")
    if space in ("prim", "profiler"):
        return None
    full, name = name, name.rstrip("_")
    written = tuple(
        i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    )
    if func.is_view or name in IDLE:
        return _Plan(full, "", written)
    if space in ("c10d", "_c10d_functional"):
        moves = any(word in name for word in ("allreduce", "all_reduce", "gather", "scatter", "broadcast", "reduce"))
        return _Plan(full, COLLECTIVE if moves else "", written)
    if "scaled_dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
        return _Plan(full, ATTENTION, written)
    if name in PRODUCTS or name.startswith("_grouped_mm"):
        return _Plan(name, MATMUL, written)
    if name.startswith("_fused_") or name.startswith("_foreach_") and name not in REDUCTIONS | COPIES:
        return _Plan(full, OPTIMIZER, written)
    if name in REDUCTIONS or any(word in name for word in NORMALISATIONS):
        return _Plan(name, REDUCTION, written)
    if name in COPIES:
        return _Plan(name, COPY, written)
    if "optimizer_update" in name:  # bitsandbytes
        return _Plan(full, OPTIMIZER, written)
    return _Plan(name, ELEMENTWISE, written, known=space in ("aten", "fsdp"))


def _size(tensor: torch.Tensor) -> int:
    """Bytes that reading a tensor once moves: what it repeats (stride 0) lies in memory once."""
    elements = math.prod(size for size, stride in zip(tensor.shape, tensor.stride()) if stride or not size)
    return elements * tensor.element_size()


def _bytes(plan: _Plan, args, given, made) -> int:
    """Read plus written by one call."""
    if plan.kind == COLLECTIVE:  # of its shard and its whole, the whole
        return max(sum(map(_size, tensors_in((value,)))) for value in (*args, made))
    target = sum(_size(tensor) for i in plan.written if i < len(args) for tensor in tensors_in((args[i],)))
    read, new = sum(map(_size, given)), sum(map(_size, made))
    if plan.name in GATHERING:
        return 2 * new
    return read + (target or new) - (target if plan.name in OVERWRITING else 0)


def _arithmetic(func, plan: _Plan, args, kwargs, result) -> tuple[int, tuple[int, ...]]:
    """(FLOPs, (batch, M, N, K) of a product). A causal kernel skips what lies above the diagonal: half."""
    flops = operation_flops(func, args, kwargs, result)
    if plan.name in PRODUCTS:
        left, right = args[PRODUCTS[plan.name] : PRODUCTS[plan.name] + 2]
        return flops, (left.shape[0] if left.dim() == 3 else 1, left.shape[-2], right.shape[-1], left.shape[-1])
    if plan.kind == ATTENTION and _argument(func, "is_causal", args, kwargs):
        flops //= 2
    return flops, ()


def _ranks(args) -> tuple[int, ...]:
    """How many ranks a collective has, by the process group among its arguments: torch's own object, or its name."""
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import _resolve_process_group

    for argument in args:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return (ProcessGroup.unbox(argument).size(),)
    names = [argument for argument in args if isinstance(argument, str)]
    return (_resolve_process_group(names[-1]).size(),) if names else ()


def _argument(func, name: str, args, kwargs):
    """The value of an argument by its name, or None."""
    names = [argument.name for argument in func._schema.arguments]
    if name in kwargs:
        return kwargs[name]
    return args[names.index(name)] if name in names and names.index(name) < len(args) else None


def _kernels(plan: _Plan, args, given) -> int:
    if not plan.name.startswith(("_foreach_", "_fused_")):
        return KERNELS.get(plan.name, 1)
    lists = [argument for argument in args if isinstance(argument, (list, tuple)) and tensors_in(argument)]
    if not lists:
        return 1
    chunks = sum(math.ceil(tensor.numel() / CHUNK) for tensor in lists[0])
    tensors = TENSORS_A_LAUNCH[min(len(lists), len(TENSORS_A_LAUNCH)) - 1]
    return max(math.ceil(chunks / CHUNKS_A_LAUNCH), math.ceil(len(lists[0]) / tensors))
