"""Check that the values of a dataclass have the types that its annotations state."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any


def check_types(instance: Any) -> None:
    """Compare each field of a dataclass instance with its annotation, also in dataclasses, lists and dicts inside it.

    An integer may stand where a float is annotated and the reverse, as JSON has one type of number. The items of lists
    and dicts may be None: `record_file.to_json` writes numbers that are not finite as null.

    Raises ValueError, which names the field and its annotation.
    """
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if not _matches(value, _annotations(type(instance))[field.name]):
            raise ValueError(f"{field.name} is not {field.type}")


@functools.cache
def _annotations(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _matches(value: Any, annotation: Any) -> bool:
    kind, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if kind is types.UnionType or kind is typing.Union:
        return any(_matches(value, option) for option in arguments)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if isinstance(value, kind):
            check_types(value)
        return isinstance(value, kind)
    if not isinstance(value, (int, float) if kind in (int, float) else kind):
        return False
    if arguments:  # list[item] or dict[key, item]
        items = value.values() if isinstance(value, dict) else value
        return all(item is None or _matches(item, arguments[-1]) for item in items)
    return True
