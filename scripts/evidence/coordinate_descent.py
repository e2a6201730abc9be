"""Minimisation of a loss by one value at a time, in ever smaller steps of its logarithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

Values = TypeVar("Values")
Key = TypeVar("Key")


def minimise(
    loss: Callable[[Values], float],
    start: Values,
    keys: Iterable[Key],
    scaled: Callable[[Values, Key, float], Values],
    strides: tuple[float, float],
    least_gain: float = 1e-6,
) -> Values:
    """The values with the smallest loss that coordinate descent finds.

    keys: which values are changed, in turn. scaled: (values, key, factor) -> values with one of them multiplied.
    strides: of a value's logarithm, the first, and that at which the search ends; a stride with which no value gets
    better is halved. least_gain: the loss by which a change must be better.
    """
    keys, (stride, last) = list(keys), strides
    found, best = start, loss(start)
    while stride > last:
        better = False
        for key in keys:
            for factor in (math.exp(stride), math.exp(-stride)):
                changed = scaled(found, key, factor)
                now = loss(changed)
                if now < best - least_gain:
                    found, best, better = changed, now, True
                    break
        stride = stride if better else stride / 2
    return found
