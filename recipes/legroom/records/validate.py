"""Check that the values of a dataclass have the types that its annotations state."""

import dataclasses
import functools
import types
import typing
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
        return (value is None and type(None) in arguments) or any(has_type(value, option) for option in arguments)
    if is_dataclass:
        if isinstance(value, kind):
            check_types(value)
        return isinstance(value, kind)
    if kind in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST
    if not isinstance(value, kind):
        return False
    if arguments and value:  # list[item] or dict[key, item]
        items, item_kind = value.values() if isinstance(value, dict) else value, arguments[-1]
        if item_kind is Any:
            return True
        if has_type(0.5, item_kind) and all(type(item) is float for item in items):  # as the losses of a long run
            return all(-LARGEST <= item <= LARGEST for item in items)
        return all((item is None and item_kind is float) or has_type(item, item_kind) for item in items)
    return True
