"""Arrays of numpy whose numbers nobody computed, and the functions of numpy that take lists of such numbers.

numpy is not imported for that: the script has it, or not.
"""

from __future__ import annotations

import functools
import importlib

import torch

from legroom_inside import numbers

# Of lists, which numpy turns into arrays without asking the numbers in them.
OF_LISTS = ("array", "asarray", "mean", "average", "median", "sum", "std", "var", "min", "max", "amin", "amax")
CHECKED = 256  # numbers of a list that are looked at
ALREADY_ZERO_BYTES = 2**20  # such an array lies in pages that nobody has touched


def _unknown_array():
    return importlib.import_module("legroom_inside.unknown_array")


def unknown(array):
    """An array as one whose numbers nobody computed; they are zeros, as those of a large one are already."""
    if array.flags.writeable and array.nbytes < ALREADY_ZERO_BYTES:
        array[...] = 0
    return array.view(_unknown_array().UnknownArray)


def is_unknown(value):
    """Whether a value is an array that nobody computed."""
    return type(value).__name__ == "UnknownArray"


def install(numpy):
    """Let numpy's functions see the unknown numbers in a list, and its scalars those beside them."""
    numbers.Unknown.__array_ufunc__ = _unknown_array().of_scalars
    for name in OF_LISTS:
        setattr(numpy, name, _seeing(getattr(numpy, name), numpy))


def _seeing(function, numpy):
    makes_array = function.__name__ in ("array", "asarray")
    module = _unknown_array()

    @functools.wraps(function)
    def seen(*args, **settings):
        first = args[0] if args else None
        if isinstance(first, (list, tuple)) and _has_unknown(first):
            zeros = numpy.zeros(numpy.shape(_zeros(first)))
            args = (zeros.view(module.UnknownArray), *args[1:])
        elif makes_array and isinstance(first, torch.Tensor) and first.device.type == "cpu":
            args = (first.detach().numpy(), *args[1:])
        result = function(*args, **settings)
        if makes_array and args and is_unknown(args[0]):
            return module.marked(result)
        return result

    return seen


def _has_unknown(value):
    if isinstance(value, (list, tuple)):
        return any(_has_unknown(element) for element in value[:CHECKED])
    return isinstance(value, numbers.Unknown)


def _zeros(value):
    """Lists of the same lengths, of zeros."""
    if isinstance(value, (list, tuple)):
        return [_zeros(element) for element in value]
    return 0
