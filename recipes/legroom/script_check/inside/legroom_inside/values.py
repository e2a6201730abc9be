"""Which values are known on a device that computes nothing.

Whole numbers and truths that follow from known ones (masks, positions, lengths) are computed on the host beside the
device: each such tensor has a twin. Of other whole numbers an upper bound may be known. All else is unknown.
"""

from __future__ import annotations

import contextlib
import math

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from legroom_inside import places

aten = torch.ops.aten
MOST_ELEMENTS = 2**22  # of the results of one operation that are computed on the host as well
SMALL_FLOATS = 64  # elements of a tensor of floats that has a twin, too: a scale, a learning rate
TOLD_ELEMENTS = 8192  # of a tensor that was copied to the device just now, which remembers small copies
SHAPE_FROM_VALUES = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
# Operations whose result has the values of their first argument.
KEEPS_VALUES = {
    *("_to_copy", "clone", "detach", "alias", "view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "expand"),
    *("permute", "transpose", "t", "select", "slice", "index", "index_select", "unbind", "split"),
}
# Those that keep at least the upper bound of all arguments.
KEEPS_BOUNDS = {
    *(
        "max",
        "amax",
        "maximum",
        "clamp",
        "clamp_min",
        "flip",
        "cat",
        "stack",
        "sort",
        "topk",
        "roll",
        "repeat",
        "where",
    ),
}
# Those that take elements out of their first argument, by indices or a mask.
SELECTS = {"index", "index_select", "gather", "masked_select", "take_along_dim", "embedding"}
# Those that write into their first argument, and which argument they write.
WRITES = {"index_put": 2, "scatter": 3, "masked_fill": 2, "masked_scatter": 2, "index_fill": 3}
# Whatever the other operand is, the result is the one that is all zeros (or, of truths, all ones).
DECIDED_BY = {"bitwise_and": 0, "logical_and": 0, "mul": 0, "bitwise_or": 1, "logical_or": 1}
# What is asked of numbers that nobody computed, and taken to be so: they are finite.
ASSUMED = {aten.isnan.default: False, aten.isinf.default: False, aten.isfinite.default: True}


def tensors_of(values):
    """The tensors among arguments, also in lists and dictionaries."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += tensors_of(value)
        elif isinstance(value, dict):
            tensors += tensors_of(value.values())
    return tensors


def replaced(value, change):
    """Arguments with each tensor and each device changed."""
    if isinstance(value, (torch.Tensor, torch.device)):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(element, change) for element in value)
    if isinstance(value, dict):
        return {name: replaced(element, change) for name, element in value.items()}
    return value


class Values:
    """The twins, bounds and shares of tensors on the device. hollow: knows which tensors of the host have no values.
    say: takes a note."""

    def __init__(self, hollow, say):
        self.hollow = hollow
        self.say = say
        self.twins = WeakTensorKeyDictionary()
        self.bounds = WeakTensorKeyDictionary()
        self.shares = WeakTensorKeyDictionary()  # of unknown masks: which share of the elements is taken to be true

    def twin(self, tensor):
        """The values of a tensor, on the host; None: not known."""
        if tensor.device.type != "cpu":
            return self.twins.get(tensor)
        if self.hollow.holds(tensor):
            return None
        return tensor

    def bound(self, tensor):
        """The largest value that the elements may have; None: not known."""
        if tensor.dtype == torch.bool:
            return 1
        twin = self.twin(tensor)
        if twin is not None and 0 < twin.numel() <= MOST_ELEMENTS and not twin.is_floating_point():
            return int(twin.max())
        return self.bounds.get(tensor)

    def on_host(self, func, args, kwargs):
        """An operation computed from twins, which all are known."""

        def change(value):
            if isinstance(value, torch.device):
                return torch.device("cpu")
            return self.twin(value)

        settings = replaced(kwargs, change)
        settings.pop("pin_memory", None)
        return func(*replaced(args, change), **settings)

    def before(self, func, args, kwargs, tensors):
        """(True, the result) where the shape of a result depends on values; otherwise (False, None)."""
        if func not in SHAPE_FROM_VALUES or not (tensors[0].is_cuda or self._is_unknown_on_host(tensors)):
            return False, None
        if all(self.twin(tensor) is not None for tensor in tensors):
            twins = self.on_host(func, args, kwargs)
            result = replaced(twins, lambda twin: torch.empty_like(twin, device=tensors[0].device))
            for tensor, twin in zip(tensors_of((result,)), tensors_of((twins,))):
                self.twins[tensor] = twin
            return True, result
        if func is aten.nonzero.default:
            return True, self.positions(args[0])
        if func is aten.masked_select.default and args[0].shape == args[1].shape:
            selected = args[0].new_empty(self._count_of(args[1]))
            self.hollow.add(selected)
            self._keep_bound(func, args, tensors, selected)
            return True, selected
        return False, None

    def _is_unknown_on_host(self, tensors):
        return any(tensor.device.type == "cpu" and self.hollow.holds(tensor) for tensor in tensors)

    def _count_of(self, mask):
        """How many elements of an unknown mask are taken to be true, with a note."""
        share = self.shares.get(mask)
        if share is None:
            count = mask.numel()
            taken = f"all {count:,}, the most there may be,"
        else:
            count = max(1, math.ceil(mask.numel() * share))
            taken = f"{count:,}, an equal share,"
        self.say(f"{places.line()} selects elements by values that nobody computed: {taken} are taken.")
        return count

    def positions(self, mask):
        """The positions of the true elements of an unknown mask: as many as there may be, or an equal share of them."""
        count = self._count_of(mask)
        if mask.is_cuda:  # nobody looks there
            return torch.empty(count, mask.dim(), dtype=torch.int64, device=mask.device)
        return torch.ones(mask.shape, dtype=torch.bool).nonzero()[:count]

    def indices(self, args):
        """The arguments of an indexing operation, with the positions of masks in place of the masks."""
        source, indices, *rest = args
        positions = []
        for index in indices:
            is_mask = isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            if not is_mask or not (index.is_cuda or self.hollow.holds(index)):
                positions.append(index)
                continue
            twin = self.twin(index)
            if twin is not None:
                positions += [column.to(index.device) for column in twin.nonzero(as_tuple=True)]
            else:
                positions += self.positions(index).unbind(1)
        return (source, positions, *rest)

    def after(self, func, args, kwargs, tensors, result):
        """Keep the twins and bounds of an operation's results, or forget those that were written over."""
        results = tensors_of((result,))
        on_device = [tensor for tensor in results if tensor.is_cuda]
        if not on_device:
            if results and any(tensor.is_cuda for tensor in tensors):
                self._copied_to_host(func, args, kwargs, tensors, results)
            else:
                self.keep_on_host(func, args, tensors, results)
            return
        if func is aten.lift_fresh.default or func is aten.lift_fresh_copy.default:
            self._read_back(on_device[0], args[0])
            return
        if func.namespace in COLLECTIVES:
            self._agreed(func.__name__, args)
            return
        if self._is_worth_it(func, tensors, on_device):
            try:
                twins = tensors_of((self.on_host(func, args, kwargs),))
            except (NotImplementedError, RuntimeError, IndexError):
                twins = []  # the GPU alone has the operation for this type
            if len(twins) == len(results):
                for tensor, twin in zip(results, twins):
                    if tensor.is_cuda and tensor.shape == twin.shape:
                        self.twins[tensor] = twin
                return
        for tensor in on_device:
            twin, bound, share = self._what_follows(func, args, tensors, tensor)
            self._forget(tensor)  # not before: it may be an argument that was written over
            if twin is not None:
                self.twins[tensor] = twin
            if bound is not None:
                self.bounds[tensor] = bound
            if share is not None:
                self.shares[tensor] = share

    def _forget(self, tensor):
        self.twins.pop(tensor, None)
        self.bounds.pop(tensor, None)
        self.shares.pop(tensor, None)

    def keep_on_host(self, func, args, tensors, results):
        """Keep the bounds of results on the host whose values are not known."""
        for result in results:
            if self.hollow.holds(result):
                self._keep_bound(func, args, tensors, result)

    def _keep_bound(self, func, args, tensors, result):
        _, bound, share = self._what_follows(func, args, tensors, result)
        if bound is not None:
            self.bounds[result] = bound
        if share is not None:
            self.shares[result] = share

    def _agreed(self, name, args):
        """What a collective brings where all ranks have the same numbers. It writes into its first argument, and reads
        the second, if that is one; all_reduce and broadcast work in place."""
        results = tensors_of(args[:1])
        sources = tensors_of(args[1:2]) or results
        twins = [self.twin(source) if source.numel() <= TOLD_ELEMENTS else None for source in sources]
        for index, result in enumerate(results):
            twin = twins[min(index * len(twins) // len(results), len(twins) - 1)]
            if twin is None:
                self._forget(result)
            elif "gather" in name and result.numel() > twin.numel():
                repeats = result.numel() // twin.numel()
                self.twins[result] = twin.flatten().repeat(repeats).reshape(result.shape)
            elif "allreduce" in name:
                self.twins[result] = _reduced(twin, args)
            elif result.shape == twin.shape:
                self.twins[result] = twin.clone()
            else:
                self.twins.pop(result, None)

    def _is_worth_it(self, func, tensors, results):
        """Whether the results are known, and small enough to be computed on the host."""
        if sum(result.numel() for result in results) > MOST_ELEMENTS:
            return False
        for result in results:
            if result.is_floating_point() and result.numel() > SMALL_FLOATS:
                return False
            if result.is_complex() or result.layout is not torch.strided:
                return False
        if torch.Tag.nondeterministic_seeded in func.tags or "empty" in func.__name__:
            return False
        return all(self.twin(tensor) is not None for tensor in tensors)

    def _what_follows(self, func, args, tensors, result):
        """(twin, bound, share) of a result of unknown numbers, each of which may be None. The result may be known all
        the same, or have a bound."""
        if func in ASSUMED:
            if result.numel() > MOST_ELEMENTS:
                return None, None, None
            return torch.full(result.shape, ASSUMED[func]), None, None
        if func is aten.random_.default and result.numel() == 1:  # a seed, and any will do
            return torch.ones(result.shape, dtype=result.dtype), None, None
        if result.is_floating_point():
            return None, None, None
        name = func.__name__.partition(".")[0]
        if not name.startswith("_"):
            name = name.rstrip("_")
        share = self._share_of_result(name, tensors, result)
        if self._is_decided(name, tensors, result):
            return torch.full(result.shape, DECIDED_BY[name], dtype=result.dtype), None, share
        if result.dtype == torch.bool:
            return None, None, share
        return None, self._bound_of_result(name, args, tensors, result), share

    def _is_decided(self, name, tensors, result):
        """Whether one known operand decides the whole result (DECIDED_BY)."""
        decided_by = DECIDED_BY.get(name)
        if decided_by is None or result.numel() > MOST_ELEMENTS:
            return False
        if decided_by == 1 and result.dtype != torch.bool:
            return False
        for tensor in tensors:
            twin = self.twin(tensor)
            if twin is not None and twin.numel() and bool(((twin != 0) == decided_by).all()):
                return True
        return False

    def _share_of_result(self, name, tensors, result):
        """Which share of a mask is true where classes are equally frequent, as tokens are among experts."""
        if not tensors:
            return None
        if name == "eq" and not tensors[0].is_floating_point():
            bound = self.bound(tensors[0])
            return 1 / (bound + 1) if bound else None
        if name == "scatter" and len(tensors) > 1:
            return min(1.0, tensors[1].numel() / max(1, result.numel()))
        if name in KEEPS_VALUES or name in ("ne", "gt", "greater"):
            return self.shares.get(tensors[0])
        return None

    def _bound_of_result(self, name, args, tensors, result):
        """The upper bound of a result of whole numbers that are at least 0; None: not known."""
        if not tensors:
            return None
        source = tensors[0]
        if name == "count_nonzero":
            return source.numel() // max(1, result.numel())
        if name in ("argmax", "argmin", "multinomial"):
            return _largest_index(name, args, source)
        if name in ("topk", "sort", "max", "min", "kthvalue") and source.is_floating_point():
            return _largest_index(name, args, source)
        if name == "copy":
            return self._bound_of_argument(args[1])
        if name == "bitwise_and":
            bounds = [self.bound(tensor) for tensor in tensors]
            return min((bound for bound in bounds if bound is not None), default=None)
        if name == "rsub":
            return args[1] if isinstance(args[1], int) else None
        if name in ("remainder", "fmod"):
            divisor = self._bound_of_argument(args[1])
            return None if divisor is None else max(0, divisor - 1)
        first = self.bound(source)
        if first is None:
            return None
        if name == "sum":
            return first * (source.numel() // max(1, result.numel()))
        if name == "cumsum":
            return first * source.numel()
        return self._bound_by_first(name, args, tensors, first)

    def _bound_by_first(self, name, args, tensors, first):
        """The upper bound of a result, for a first argument of at most `first`."""
        if name in SELECTS:
            return first
        if name in WRITES:
            written = self._bound_of_argument(args[WRITES[name]])
            return None if written is None else max(first, written)
        if name in KEEPS_VALUES or name in KEEPS_BOUNDS:
            bounds = [self.bound(tensor) for tensor in tensors if not tensor.is_floating_point()]
            return None if None in bounds else max(bounds, default=None)
        if name == "sub":
            return max(0, first - args[1]) if isinstance(args[1], int) else first
        if name in ("add", "mul") and len(args) > 1:
            other = self._bound_of_argument(args[1])
            if other is not None and other >= 0:
                return first + other if name == "add" else first * other
        return None

    def _bound_of_argument(self, value):
        """The upper bound of a whole number, or of a tensor of such; None: not known."""
        if isinstance(value, torch.Tensor):
            return None if value.is_floating_point() else self.bound(value)
        return value if isinstance(value, int) else None

    def _read_back(self, result, source):
        """`torch.tensor(3, device="cuda")` tells the device below every mode: the device remembers small copies."""
        if source in self.twins:
            self.twins[result] = self.twins[source]
        elif result.numel() <= TOLD_ELEMENTS:
            self.twins[result] = aten._to_copy.default(result, device=torch.device("cpu"))

    def _copied_to_host(self, func, args, kwargs, tensors, results):
        """What is copied to the host has its values there, or is hollow."""
        if func is aten.copy_.default:
            twin = self.twin(tensors[1]) if len(tensors) > 1 else None
            if twin is not None:
                args[0].copy_(twin)
                return
        elif all(self.twin(tensor) is not None for tensor in tensors):
            for result, twin in zip(results, tensors_of((self.on_host(func, args, kwargs),))):
                result.copy_(twin)
            return
        bounds = [self.bound(tensor) for tensor in tensors]
        bounds = [bound for bound in bounds if bound is not None]
        for result in results:
            self.hollow.add(result)
            if bounds and not result.is_floating_point():
                self.bounds[result] = bounds[0]


def _largest_index(name, args, source):
    """The largest that an operation which returns indices of elements may return."""
    place = 2 if name in ("topk", "kthvalue") else 1  # of the dimension among the arguments
    dimension = -1
    if name != "multinomial" and len(args) > place and isinstance(args[place], int):
        dimension = args[place]
    elif name in ("argmax", "argmin"):  # of all elements
        return max(0, source.numel() - 1)
    if source.dim() == 0:
        return 0
    return max(0, source.shape[dimension] - 1)


def _reduced(twin, args):
    """The result of an all_reduce over ranks that all have these numbers."""
    import torch.distributed as dist

    kind = dist.ReduceOp.SUM
    for argument in args:
        if type(argument).__name__ == "ScriptObject" and "ReduceOp" in str(argument):
            with contextlib.suppress(AttributeError, RuntimeError, TypeError):
                kind = dist.ReduceOp.unbox(argument).op
            break
    if kind == dist.ReduceOp.SUM:
        return twin * dist.get_world_size()
    return twin.clone()
