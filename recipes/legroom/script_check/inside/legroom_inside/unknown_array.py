"""An array of numpy whose numbers nobody computed. Imported where the script's environment has numpy (arrays.py)."""

from __future__ import annotations

import numpy

from legroom_inside import numbers, places

# Functions whose result has as many elements as there are numbers of a kind.
SELECTING = ("where", "nonzero", "flatnonzero", "argwhere", "unique")
INDICES = ("argmax", "argmin")
# What is drawn or logged, and decides nothing: that of the zeros will do, and is known.
DRAWN = ("histogram", "histogram2d", "histogramdd", "histogram_bin_edges")


class UnknownArray(numpy.ndarray):
    """What is calculated of it is unknown, too, and what it decides is noted. Its numbers are zeros."""

    def __array_ufunc__(self, function, method, *inputs, out=None, **settings):
        settings = {name: plain(value) for name, value in settings.items()}
        if out is not None:
            settings["out"] = tuple(plain(array) for array in out)
        result = getattr(function, method)(*[plain(value) for value in inputs], **settings)
        bound = None
        arrays = [value for value in inputs if isinstance(value, numpy.ndarray)]
        if function is numpy.add and any(array.dtype.kind == "b" for array in arrays):  # it counts
            bound = max(array.size for array in arrays)
        return marked(result, bound)

    def __array_function__(self, function, types, args, kwargs):
        name = function.__name__
        if name == "unique" or (name in SELECTING and len(args) == 1):
            _say_all_are_taken()
            values = plain(args[0])
            if name == "unique":
                return marked(values.flatten())
            return function(numpy.ones(values.shape, dtype=bool))
        result = function(*all_plain(args), **{key: all_plain(value) for key, value in kwargs.items()})
        if name in DRAWN:
            return result
        if name in INDICES:
            return marked(result, self.size - 1)
        return marked(result)

    def __getitem__(self, index):
        if isinstance(index, UnknownArray) and index.dtype.kind == "b":
            _say_all_are_taken()
            index = numpy.ones(index.shape, dtype=bool)
        return marked(super().__getitem__(plain(index)))

    def __iter__(self):
        return (self[index] for index in range(len(self)))

    def __bool__(self):
        if self.size == 1:
            return numbers.DECISIONS.answer()
        return bool(plain(self))

    def __int__(self):
        return numbers.DECISIONS.whole(None)

    def __index__(self):
        return numbers.DECISIONS.whole(None, "a size or a position")

    def item(self, *args):
        return _number(super().item(*args))

    def tolist(self):
        return _each_number(super().tolist())

    def argmax(self, *args, **settings):
        return marked(plain(self).argmax(*args, **settings), self.size - 1)

    def argmin(self, *args, **settings):
        return marked(plain(self).argmin(*args, **settings), self.size - 1)

    def nonzero(self):
        return numpy.nonzero(self)

    def __reduce__(self):
        return plain(self).__reduce__()


def _say_all_are_taken():
    numbers.DECISIONS.say(f"{places.line()} selects elements by values that nobody computed: all are taken.")


def plain(value):
    """An argument as numpy's own functions take it."""
    if isinstance(value, UnknownArray):
        return value.view(numpy.ndarray)
    if isinstance(value, numbers.UnknownFloat):
        return 1.0
    if isinstance(value, numbers.UnknownInt):
        return int.__int__(value)
    return value


def all_plain(value):
    """The same of lists of arguments."""
    if isinstance(value, (list, tuple)):
        return type(value)(all_plain(element) for element in value)
    return plain(value)


def marked(result, bound=None):
    """What numpy has calculated, as unknown. bound: the upper bound of a whole number."""
    if isinstance(result, (tuple, list)):
        return type(result)(marked(element, bound) for element in result)
    if isinstance(result, (bool, numpy.bool_)):
        return numpy.asarray(result).view(UnknownArray)
    if isinstance(result, numpy.ndarray):
        return result.view(UnknownArray)
    return _number(result, bound)


def _number(value, bound=None):
    if isinstance(value, (bool, numpy.bool_)):
        return numbers.DECISIONS.answer()
    if isinstance(value, (int, numpy.integer)):
        return numbers.unknown_int(bound)
    if isinstance(value, (float, numpy.floating)):
        return numbers.unknown_float(bound)
    return value


def _each_number(value):
    if isinstance(value, list):
        return [_each_number(element) for element in value]
    return _number(value)


def of_scalars(number, function, method, *inputs, **settings):
    """What numpy's functions and scalars make of an unknown number."""
    return UnknownArray.__array_ufunc__(number, function, method, *inputs, **settings)
