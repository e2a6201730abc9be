"""What the script's Python code reads of tensors whose values nobody computed."""

from __future__ import annotations

import math

import torch

from legroom_inside import arrays, imports, numbers, places
from legroom_inside.plain import Plain
from legroom_inside.recorder import PLAIN

CONVERSIONS = ("__float__", "__int__", "__index__", "__bool__")
ROUNDINGS = {"__ceil__": math.ceil, "__floor__": math.floor, "__trunc__": math.trunc}
METHODS = ("item", "tolist", "numpy", "__repr__", *CONVERSIONS)


class Reads:
    """Stands for the methods of torch.Tensor that read values. say: takes a note."""

    def __init__(self, recorder, say):
        self.recorder = recorder
        self.say = say
        self.decisions = recorder.decisions
        self.known = recorder.known
        self.real = {name: getattr(torch.Tensor, name) for name in METHODS}

    def is_unknown(self, tensor):
        return not torch.compiler.is_compiling() and self.recorder.is_unknown(tensor)

    def number(self, tensor):
        """A number that stands for one that nobody computed."""
        if tensor.dtype == torch.bool:
            return self.decisions.answer()
        if tensor.is_floating_point():
            return numbers.unknown_float()
        bound = self.known.bound(tensor)
        note = f"{places.line()} reads a whole number that nobody computed"
        if bound is None:
            self.say(f"{note}, beyond all sizes.")
        else:
            self.say(f"{note}: as a size it is at most {bound:,}.")
        return numbers.unknown_int(bound)

    def item(self, tensor):
        if tensor.numel() != 1 or not self.is_unknown(tensor):
            return self.real["item"](tensor)
        return self.number(tensor)

    def tolist(self, tensor):
        if not tensor.numel() or not self.is_unknown(tensor):
            return self.real["tolist"](tensor)
        self.say(f"{places.line()} reads {tensor.numel()} numbers that nobody computed.")
        return _nested(tensor.shape, self.number(tensor))

    def numpy(self, tensor, *args, **settings):
        array = self.real["numpy"](tensor, *args, **settings)
        if tensor.device.type == "cpu" and tensor.numel() and self.is_unknown(tensor):
            return arrays.unknown(array)
        return array

    def from_array(self, from_numpy, array):
        """`torch.from_numpy`: a tensor of unknown numbers is unknown, too."""
        tensor = from_numpy(array)
        if arrays.is_unknown(array):
            self.recorder.host.add(tensor)
        return tensor

    def is_unknown_number(self, value):
        """Whether a value is a tensor or an array of one number that nobody computed."""
        if torch.compiler.is_compiling():
            return False
        if isinstance(value, torch.Tensor):
            return value.numel() == 1 and self.is_unknown(value)
        return arrays.is_unknown(value) and value.size == 1

    def rounded(self, function, tensor):
        """`math.ceil(tensor)` and its kin."""
        if tensor.numel() == 1 and self.is_unknown(tensor):
            return function(self.number(tensor))
        return function(tensor.item())

    def represented(self, tensor, **settings):
        """The text of a tensor. One on the device is never read for it: torch's own text selects elements by values."""
        if type(tensor) not in PLAIN or tensor.device.type not in ("cuda", "cpu"):
            return self.real["__repr__"](tensor, **settings)
        twin = self.known.twin(tensor)
        if twin is tensor:
            return self.real["__repr__"](tensor, **settings)
        if twin is None:
            return f"tensor(not computed, size={tuple(tensor.shape)}, dtype={tensor.dtype})"
        return f"{self.real['__repr__'](twin, **settings)[:-1]}, device='{tensor.device}')"

    def converted(self, name, tensor):
        """`float(tensor)` and its kin."""
        if tensor.numel() != 1 or not self.is_unknown(tensor):
            return self.real[name](tensor)
        if name == "__bool__":
            return self.decisions.answer()
        if name == "__float__":
            where = places.asking_line()
            if where:
                self.say(
                    f"{where} makes a plain 1.0 of a number that nobody computed: what it decides is not followed."
                )
            return 1.0
        if tensor.dtype == torch.bool:
            return int(self.decisions.answer())
        bound = None
        if not tensor.is_floating_point():
            bound = self.known.bound(tensor)
        if name == "__index__":
            return self.decisions.whole(bound, "a size or a position")
        return self.decisions.whole(bound)

    def compared(self, compare, left, right, *args, **settings):
        """`torch.equal` and its kin."""
        for operand in (left, right):
            if isinstance(operand, torch.Tensor) and self.is_unknown(operand):
                return self.decisions.answer()
        return compare(left, right, *args, **settings)

    def ctc_loss(self, compute, log_probs, targets, input_lengths, target_lengths, *args, **settings):
        """`torch.ctc_loss` with its lengths as numbers, which torch reads where there is no mode: under one it hands
        tensors to a kernel that takes none of the host. log_probs: (T, N, C). targets: (N, S), or all in one row."""
        longest = [(input_lengths, log_probs.shape[0]), (target_lengths, targets.shape[-1])]
        lengths = []
        for values, most in longest:
            if isinstance(values, torch.Tensor):
                twin = self.known.twin(values)
                values = [most] * values.numel() if twin is None else twin.flatten().tolist()
            lengths.append(values)
        return compute(log_probs, targets, *lengths, *args, **settings)


def install(recorder, say):
    """Let torch.Tensor's methods, numpy and `float` answer for numbers that nobody computed. Returns what stands in
    place of `float` and the functions of `math`."""
    reads = Reads(recorder, say)
    plain = Plain(reads.is_unknown_number)
    plain.install()
    imports.after("numpy", arrays.install)
    torch.Tensor.item = lambda tensor: reads.item(tensor)
    torch.Tensor.tolist = lambda tensor: reads.tolist(tensor)
    torch.Tensor.numpy = lambda tensor, *args, **settings: reads.numpy(tensor, *args, **settings)
    torch.Tensor.__repr__ = lambda tensor, **settings: reads.represented(tensor, **settings)
    for name in CONVERSIONS:
        setattr(torch.Tensor, name, lambda tensor, name=name: reads.converted(name, tensor))
    for name, function in ROUNDINGS.items():
        setattr(torch.Tensor, name, lambda tensor, function=function: reads.rounded(function, tensor))
    from_numpy = torch.from_numpy
    torch.from_numpy = lambda array: reads.from_array(from_numpy, array)
    ctc_loss = torch.ctc_loss
    torch.ctc_loss = lambda *args, **settings: reads.ctc_loss(ctc_loss, *args, **settings)
    for name in ("equal", "allclose"):
        compare = getattr(torch, name)

        def answer(*args, compare=compare, **settings):
            return reads.compared(compare, *args, **settings)

        setattr(torch, name, answer)
    return plain


def _nested(shape, number):
    """A list of lists, as `tolist` returns it."""
    if len(shape) == 0:
        return number
    return [_nested(shape[1:], number) for _ in range(shape[0])]
