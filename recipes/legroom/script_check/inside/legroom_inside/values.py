"""Which values are known on a device that computes nothing.

Whole numbers and truths that follow from known ones (masks, positions, lengths) are computed on the host beside the
device: each such tensor has a twin. Of other whole numbers an upper bound may be known. All else is unknown.
"""

from __future__ import annotations

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
# Operations whose result has the values of their first argument, and those that keep at least its upper bound.
COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
KEEPS_VALUES = ("_to_copy", "clone", "detach", "alias", "view", "_unsafe_view", "select", "slice", "squeeze", "reshape")
KEEPS_VALUES += ("unsqueeze", "expand", "permute", "transpose", "t", "index", "index_select", "unbind", "split")
KEEPS_BOUNDS = (
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
)
KEEPS_BOUNDS += ("where",)
# Those that take elements out of their first argument, by indices or a mask, and those that write into it.
SELECTS = ("index", "index_select", "gather", "masked_select", "take_along_dim", "embedding")
WRITES = {
    "index_put": 2,
    "scatter": 3,
    "masked_fill": 2,
    "masked_scatter": 2,
    "index_fill": 3,
}  # which argument is written
# Whatever the other operand is, the result is the one that is all zeros (or, of truths, all ones).
DECIDED_BY = {"bitwise_and": 0, "logical_and": 0, "mul": 0, "bitwise_or": 1, "logical_or": 1}
# What is asked of numbers that nobody computed, and taken to be so: they are finite.
ASSUMED = {aten.isnan.default: False, aten.isinf.default: False, aten.isfinite.default: True}


def tensors_of(values):
    """The tensors among arguments, also in lists and dictionaries."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_of(value)
        elif isinstance(value, dict):
            found += tensors_of(value.values())
    return found


def replaced(value, change):
    """Arguments with each tensor and each device changed."""
    if isinstance(value, (torch.Tensor, torch.device)):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(each, change) for each in value)
    if isinstance(value, dict):
        return {name: replaced(each, change) for name, each in value.items()}
    return value


class Values:
    """The twins, bounds and shares of tensors on the device. hollow: knows which tensors of the host have no values.
    say: takes a note."""

    def __init__(self, hollow, say):
        self.hollow, self.say = hollow, say
        self.twins = WeakTensorKeyDictionary()
        self.bounds = WeakTensorKeyDictionary()
        self.shares = WeakTensorKeyDictionary()  # of unknown masks: which share of the elements is taken to be true

    def twin(self, tensor):
        """The values of a tensor, on the host; None: not known."""
        if tensor.device.type == "cpu":
            return None if self.hollow.holds(tensor) else tensor
        return self.twins.get(tensor)

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
            return torch.device("cpu") if isinstance(value, torch.device) else self.twin(value)

        settings = replaced(kwargs, change)
        settings.pop("pin_memory", None)
        return func(*replaced(args, change), **settings)

    def before(self, func, args, kwargs, tensors):
        """(True, the result) where the shape of a result depends on values; otherwise (False, None)."""
        if func not in SHAPE_FROM_VALUES or not (tensors[0].is_cuda or self._is_unknown_on_host(tensors)):
            return False, None
        if all(self.twin(tensor) is not None for tensor in tensors):
            found = self.on_host(func, args, kwargs)
            made = replaced(found, lambda twin: torch.empty_like(twin, device=tensors[0].device))
            for one, twin in zip(tensors_of((made,)), tensors_of((found,))):
                self.twins[one] = twin
            return True, made
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
                positions += [each.to(index.device) for each in twin.nonzero(as_tuple=True)]
            else:
                positions += self.positions(index).unbind(1)
        return (source, positions, *rest)

    def after(self, func, args, kwargs, tensors, result):
        """Keep the twins and bounds of an operation's results, or forget those that were written over."""
        made = tensors_of((result,))
        on_device = [one for one in made if one.is_cuda]
        if not on_device:
            if made and any(tensor.is_cuda for tensor in tensors):
                self._copied_to_host(func, args, kwargs, tensors, made)
            else:
                self.keep_on_host(func, args, tensors, made)
            return
        if func is aten.lift_fresh.default or func is aten.lift_fresh_copy.default:
            self._read_back(on_device[0], args[0])
            return
        if func.namespace in COLLECTIVES:
            self._agreed(func.__name__, args, tensors)
            return
        if self._is_worth_it(func, tensors, on_device):
            try:
                found = tensors_of((self.on_host(func, args, kwargs),))
            except (NotImplementedError, RuntimeError, IndexError):
                found = []  # the GPU alone has the operation for this type
            if len(found) == len(made):
                for one, twin in zip(made, found):
                    if one.is_cuda and one.shape == twin.shape:
                        self.twins[one] = twin
                return
        for one in on_device:
            twin, bound, share = self._what_follows(func, args, tensors, one)
            for kept, value in ((self.twins, twin), (self.bounds, bound), (self.shares, share)):
                kept.pop(one, None)
                if value is not None:
                    kept[one] = value

    def keep_on_host(self, func, args, tensors, made):
        """Keep the bounds of results on the host whose values are not known."""
        for one in made:
            if self.hollow.holds(one):
                self._keep_bound(func, args, tensors, one)

    def _keep_bound(self, func, args, tensors, one):
        _, bound, share = self._what_follows(func, args, tensors, one)
        if bound is not None:
            self.bounds[one] = bound
        if share is not None:
            self.shares[one] = share

    def _agreed(self, name, args, tensors):
        """What a collective brings where all ranks have the same numbers."""
        made, sources = tensors_of(args[:1]), tensors_of(args[1:2])
        if not sources:  # all_reduce and broadcast work in place
            sources = made
        known = [self.twin(source) if source.numel() <= TOLD_ELEMENTS else None for source in sources]
        for index, one in enumerate(made):
            twin = known[min(index * len(known) // len(made), len(known) - 1)]
            for kept in (self.twins, self.bounds, self.shares):
                if one in kept and twin is None:
                    kept.pop(one)
            if twin is None:
                continue
            if "gather" in name and one.numel() > twin.numel():
                repeats = one.numel() // twin.numel()
                self.twins[one] = twin.flatten().repeat(repeats).reshape(one.shape)
            elif "allreduce" in name:
                self.twins[one] = _reduced(twin, args)
            elif one.shape == twin.shape:
                self.twins[one] = twin.clone()
            else:
                self.twins.pop(one, None)

    def _is_worth_it(self, func, tensors, on_device):
        """Whether the results are known, and small enough to be computed on the host."""
        if sum(one.numel() for one in on_device) > MOST_ELEMENTS:
            return False
        if any(one.is_floating_point() and one.numel() > SMALL_FLOATS for one in on_device):
            return False
        if any(one.is_complex() or one.layout is not torch.strided for one in on_device):
            return False
        if torch.Tag.nondeterministic_seeded in func.tags or "empty" in func.__name__:
            return False
        return all(self.twin(tensor) is not None for tensor in tensors)

    def _what_follows(self, func, args, tensors, one):
        """(twin, bound, share) of a result of unknown numbers, each of which may be None. The result may be known all
        the same, or have a bound."""
        if func in ASSUMED:
            twin = torch.full(one.shape, ASSUMED[func]) if one.numel() <= MOST_ELEMENTS else None
            return twin, None, None
        if one.is_floating_point():
            return None, None, None
        name = func.__name__.partition(".")[0]
        if not name.startswith("_"):
            name = name.rstrip("_")
        share = self._share_of_result(name, tensors, one)
        decided_by = DECIDED_BY.get(name)
        if decided_by is not None and one.numel() <= MOST_ELEMENTS and (decided_by == 0 or one.dtype == torch.bool):
            for tensor in tensors:
                twin = self.twin(tensor)
                if twin is not None and twin.numel() and bool(((twin != 0) == decided_by).all()):
                    return torch.full(one.shape, decided_by, dtype=one.dtype), None, share
        bound = None if one.dtype == torch.bool else self._bound_of_result(name, args, tensors, one)
        return None, bound, share

    def _share_of_result(self, name, tensors, one):
        """Which share of a mask is true where classes are equally frequent, as tokens are among experts."""
        if not tensors:
            return None
        if name == "eq" and not tensors[0].is_floating_point():
            bound = self.bound(tensors[0])
            return 1 / (bound + 1) if bound else None
        if name == "scatter" and len(tensors) > 1:
            return min(1.0, tensors[1].numel() / max(1, one.numel()))
        if name in KEEPS_VALUES or name in ("ne", "gt", "greater"):
            return self.shares.get(tensors[0])
        return None

    def _bound_of_result(self, name, args, tensors, one):
        if not tensors:
            return None
        first = self.bound(tensors[0])
        if name in ("sum", "cumsum", "count_nonzero"):
            source = tensors[0]
            summed = source.numel() // max(1, one.numel()) if name != "cumsum" else source.numel()
            each = 1 if name == "count_nonzero" else first
            return None if each is None else each * summed
        if name in ("topk", "sort", "max", "min", "kthvalue") and tensors[0].is_floating_point():
            place = 1 if name in ("sort", "max", "min") else 2
            dimension = args[place] if len(args) > place and isinstance(args[place], int) else -1
            return max(0, tensors[0].shape[dimension] - 1) if tensors[0].dim() else 0
        if name in ("argmax", "argmin", "multinomial"):
            dimension = args[1] if name != "multinomial" and len(args) > 1 and args[1] is not None else -1
            whole = len(args) < 2 or args[1] is None
            count = tensors[0].numel() if whole and name != "multinomial" else tensors[0].shape[dimension]
            return max(0, count - 1)
        if name == "copy":
            return self._bound_of_argument(args[1])
        if name == "bitwise_and":
            bounds = [bound for bound in map(self.bound, tensors) if bound is not None]
            return min(bounds, default=None)
        if name == "rsub":  # of numbers that are at least 0
            return args[1] if isinstance(args[1], int) else None
        if name in ("remainder", "fmod"):
            divisor = self._bound_of_argument(args[1])
            return None if divisor is None else max(0, divisor - 1)
        return None if first is None else self._bound_by_first(name, args, tensors, first)

    def _bound_by_first(self, name, args, tensors, first):
        """The upper bound of a result, for a first argument of at most `first`."""
        if name in SELECTS:
            return first
        if name in WRITES:
            written = self._bound_of_argument(args[WRITES[name]])
            return None if written is None else max(first, written)
        if name in KEEPS_VALUES or name in KEEPS_BOUNDS:
            all_bounds = [self.bound(tensor) for tensor in tensors if not tensor.is_floating_point()]
            return None if None in all_bounds else max(all_bounds, default=None)
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

    def _read_back(self, made, source):
        """`torch.tensor(3, device="cuda")` tells the device below every mode: the device remembers small copies."""
        if source in self.twins:
            self.twins[made] = self.twins[source]
        elif made.numel() <= TOLD_ELEMENTS:
            self.twins[made] = aten._to_copy.default(made, device=torch.device("cpu"))

    def _copied_to_host(self, func, args, kwargs, tensors, made):
        """What is copied to the host has its values there, or is hollow."""
        if func is aten.copy_.default:
            source = tensors[1] if len(tensors) > 1 else None
            twin = None if source is None else self.twin(source)
            if twin is not None:
                args[0].copy_(twin)
                return
        elif all(self.twin(tensor) is not None for tensor in tensors):
            for one, twin in zip(made, tensors_of((self.on_host(func, args, kwargs),))):
                one.copy_(twin)
            return
        for one in made:
            self.hollow.add(one)
            bound = next((each for each in map(self.bound, tensors) if each is not None), None)
            if bound is not None and not one.is_floating_point():
                self.bounds[one] = bound


def _reduced(twin, args):
    """The result of an all_reduce over ranks that all have these numbers."""
    import torch.distributed as dist

    operation = next((each for each in args if type(each).__name__ == "ScriptObject" and "ReduceOp" in str(each)), None)
    try:
        kind = dist.ReduceOp.unbox(operation).op if operation is not None else dist.ReduceOp.SUM
    except (AttributeError, RuntimeError, TypeError):
        kind = dist.ReduceOp.SUM
    if kind == dist.ReduceOp.SUM:
        return twin * dist.get_world_size()
    return twin.clone()
