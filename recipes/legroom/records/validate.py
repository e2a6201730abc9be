"""Check that the values of a dataclass have the types that its annotations state."""

import dataclasses
import functools
import types
import typing
from collections.abc import Collection
from typing import Any

LARGEST = 1e300  # larger integers cannot be converted to a float


def check_types(instance: Any) -> None:
    """Compare each field of a dataclass instance with its annotation, also in dataclasses, lists and dicts inside it.

    An integer may stand where a float is annotated and the reverse, as JSON has one type of number. Numbers are finite
    and not beyond LARGEST. In lists and dicts of floats null may stand for a number: `record_file.to_json` writes it
    for one that is not finite.

    Raises ValueError, which names the field and its annotation.
    """
    hints = type_hints(type(instance))
    for field in dataclasses.fields(instance):
        if not has_type(getattr(instance, field.name), hints[field.name]):
            raise ValueError(f"{field.name} is not {field.type}")


@functools.cache
def type_hints(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass, evaluated."""
    return typing.get_type_hints(kind)


@functools.cache
def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """(the type, its arguments, whether it is a dataclass) of an annotation."""
    kind = typing.get_origin(annotation) or annotation
    return kind, typing.get_args(annotation), isinstance(kind, type) and dataclasses.is_dataclass(kind)


def has_type(value: Any, annotation: Any) -> bool:
    """Whether a value of decoded JSON has the annotated type."""
    kind, arguments, is_dataclass = _parts(annotation)
    if kind is Any:
        return True
    if kind is types.UnionType or kind is typing.Union:
        return any(has_type(value, option) for option in arguments)
    if kind in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST
    if not isinstance(value, kind):
        return False
    if is_dataclass:
        check_types(value)
    if arguments:  # list[item] or dict[key, item]
        items = value.values() if isinstance(value, dict) else value
        return _have_type(items, arguments[-1])
    return True


def _have_type(items: Collection[Any], annotation: Any) -> bool:
    """Whether the items of a list, or the values of a dict, have the annotated type."""
    if annotation is Any:
        return True
    if has_type(0.5, annotation) and all(type(item) is float for item in items):  # quick, for the losses of a long run
        return all(-LARGEST <= item <= LARGEST for item in items)
    if annotation is float:
        return all(item is None or has_type(item, float) for item in items)
    return all(has_type(item, annotation) for item in items)
