"""Values that a record of somebody else may have in place of its own, at every path of its JSON."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

REMOVED = object()
NAME = "a\x1b[31m\r\nb\u202ec\u2028|"  # an escape code, line breaks, a change of direction, and a column's border
VALUES = [REMOVED, None, NAME, -1, 1.5, [], {}, [[]], {"a": 1}, True, 10**400, "9" * 5000, 1e300]


def paths(values: Any, above: tuple = ()) -> Iterator[tuple]:
    """The path of every value inside a decoded JSON value."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from paths(value, (*above, key))


def replaced(values: Any, path: tuple, value: Any) -> Any:
    """A copy of the values with another value at a path."""
    values = copy.deepcopy(values)
    node = values
    for key in path[:-1]:
        node = node[key]
    if value is REMOVED:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return values
