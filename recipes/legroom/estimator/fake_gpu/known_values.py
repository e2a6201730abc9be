"""Values on the fake device: integers that follow from known ones are computed on the host, all others are unknown.

Positions and attention masks are read by models (`mask.all()`, `positions[-1].item()`). They are computed from tensors
on the host, so their value can be computed there, too. It is kept as the attribute `known_value` of the fake tensor.
"""

import functools
import traceback
from pathlib import Path
from typing import Any

import torch

from legroom.compat.torch_private import op_name
from legroom.errors import UnknownOperation
from legroom.estimator.fake_gpu.fake_storages import is_fake
from legroom.estimator.fake_gpu.op_cache import replace_tensors

aten = torch.ops.aten
# Operations whose result's shape depends on values. A mask as an index is the same as the positions of its ones.
SHAPE_FROM_VALUES = {
    aten.index.Tensor,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.unique_consecutive.default,
    aten._unique2.default,
}
# What was in the first operand does not matter.
_OVERWRITES = {
    *("copy_", "fill_", "zero_", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"),
}
MAX_ELEMENTS = 2**20  # of a tensor whose value is computed
# Whatever the other operand is, the result is the one that is all zeros, or all ones.
_DECIDED_BY = {"bitwise_and": 0, "logical_and": 0, "mul": 0, "bitwise_or": 1, "logical_or": 1}
_OWN_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))  # torch, legroom


def follow(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor], result: Any) -> None:
    """Set the `known_value` of an operation's result, None if it depends on an unknown value or on chance.

    result: a tensor, or several of `split` and its kin.
    """
    values = {id(tensor): value_of(tensor) for tensor in tensors}
    name = op_name(func)
    is_random = torch.Tag.nondeterministic_seeded in func.tags or "empty" in name
    results: list[Any] = [result] if isinstance(result, torch.Tensor) else list(result)
    is_large = sum(tensor.numel() for tensor in results) > MAX_ELEMENTS
    unknown = {key for key, value in values.items() if value is None}
    if name in _OVERWRITES and id(args[0]) in unknown and results[0].numel() <= MAX_ELEMENTS:
        values[id(args[0])] = torch.empty(args[0].shape, dtype=args[0].dtype)
        unknown.remove(id(args[0]))
    if is_random or is_large or unknown:
        for tensor in results:
            decided = None
            if not is_random:
                decided = _decided(func, args, values, tensor)
            before = values.get(id(tensor))
            if decided is None and before is not None:  # written over: so are all views of it
                before.untyped_storage().is_unknown = True  # type: ignore[attr-defined]
            tensor.known_value = decided
        return
    for tensor, value in zip(results, _on_host(func, args, kwargs, values, len(results))):
        tensor.known_value = value


def _on_host(func: Any, args: Any, kwargs: Any, values: dict[int, Any], results: int) -> list[Any]:
    """The results of an operation from known values, as a list of so many; None for those that the host cannot give."""
    replaced = functools.partial(replace_tensors, replacements=values)
    host_args = [replaced(value) for value in args]
    host_kwargs = {name: replaced(value) for name, value in kwargs.items()}
    if "device" in kwargs:
        host_kwargs["device"] = torch.device("cpu")
    try:
        known = func(*host_args, **host_kwargs)
    except NotImplementedError:  # the GPU alone has it for this type: histc of integers
        return [None] * results
    if isinstance(known, torch.Tensor):
        return [known]
    return list(known)


def _decided(func: Any, args: Any, values: dict[int, Any], result: torch.Tensor) -> torch.Tensor | None:
    """The value of `unknown & False`, `unknown | True` and their like; None where the known operand does not decide."""
    number = _DECIDED_BY.get(op_name(func).removesuffix("_"))
    if number is None or result.numel() > MAX_ELEMENTS:
        return None
    if number == 1 and result.dtype != torch.bool:
        return None
    for operand in args[:2]:
        if isinstance(operand, torch.Tensor):
            value = values[id(operand)]
        else:
            value = torch.tensor(operand)
        if value is not None and value.numel() and bool(((value != 0) == number).all()):
            return torch.full(result.shape, number, dtype=result.dtype)
    return None


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a tensor, on the host; None for a fake tensor whose values are unknown."""
    value = tensor
    if is_fake(tensor):
        value = getattr(tensor, "known_value", None)
    if value is None or _has_unknown(value):
        return None
    return value


def is_uncertain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is fake, or real and has taken in numbers that are not known."""
    return is_fake(tensor) or _has_unknown(tensor)


def _has_unknown(real: torch.Tensor) -> bool:
    """Whether a fake tensor's unknown values were written to the storage of a real one."""
    return real.layout is torch.strided and real.numel() > 0 and hasattr(real.untyped_storage(), "is_unknown")


def without_masks(args: Any) -> Any:
    """The arguments of aten.index.Tensor with the positions of its known masks in place of them."""
    source, indices, *rest = args
    positions: list[torch.Tensor | None] = []
    for index in indices:
        value = None
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            value = value_of(index)
        if value is None:
            positions.append(index)
        else:
            positions += value.nonzero(as_tuple=True)
    return (source, positions, *rest)


def computed(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
    """The result of an operation on the host, from known values; None where one is unknown."""
    values = {id(tensor): value_of(tensor) for tensor in tensors}
    if any(value is None for value in values.values()):
        return None
    return func(*replace_tensors(args, values), **kwargs)


def read(tensor: Any, warnings: dict[str, None]) -> bool | int | float:
    """The number in a tensor of one element. If it is unknown: 1, with a warning that names the line that reads it."""
    known = value_of(tensor)
    if known is not None:
        return known.item()
    warnings[f"the step reads a number from the device ({reader()}), and it is taken as 1."] = None
    if tensor.dtype == torch.bool:
        return True
    if tensor.is_floating_point():
        return 1.0
    return 1


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Integers that are copied to the host, where their memory is read. Raises UnknownOperation for unknown values."""
    value = value_of(tensor)
    if value is None:
        raise UnknownOperation(f"the fake device cannot infer the numbers that the step reads ({reader()})")
    return value


def reader(stack: list[traceback.FrameSummary] | None = None) -> str:
    """The line of a library or a model that reads the device: file:line. stack: by default that of this moment."""
    if stack is None:
        stack = traceback.extract_stack()
    for frame in reversed(stack):
        if not frame.filename.startswith(_OWN_FOLDERS):
            return f"{frame.filename.rpartition('site-packages/')[2]}:{frame.lineno}"
    return "?"
