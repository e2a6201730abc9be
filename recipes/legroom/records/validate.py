"""Check that the values of a dataclass have the types that its annotations state."""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

LARGEST = 1e300  # larger integers cannot be converted to a float
Check = Callable[[Any], bool]
WITHOUT_PARTS = (str, bool, dict, list, type(None))  # types whose values need no look at anything inside


def check_types(instance: Any) -> None:
    """Compare each field of a dataclass instance with its annotation, also in dataclasses, lists and dicts inside it.

    An integer may stand where a float is annotated and the reverse, as JSON has one type of number. Numbers are finite
    and not beyond LARGEST. In lists and dicts of floats null may stand for a number: `record_file.to_json` writes it
    for one that is not finite.

    Raises ValueError, which names the field and its annotation.
    """
    for name, annotation, check in field_checks(type(instance)):
        if not check(getattr(instance, name)):
            raise ValueError(f"{name} is not {annotation}")


@functools.cache
def field_checks(kind: type) -> list[tuple[str, Any, Check]]:
    """(name, annotation as it is written, check of its value) for each field of a dataclass."""
    hints = type_hints(kind)
    return [(field.name, field.type, check_of(hints[field.name])) for field in dataclasses.fields(kind)]


@functools.cache
def type_hints(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass, evaluated."""
    return typing.get_type_hints(kind)


def has_type(value: Any, annotation: Any) -> bool:
    """Whether a value of decoded JSON has the annotated type."""
    return check_of(annotation)(value)


@functools.cache
def check_of(annotation: Any) -> Check:
    """A function that says whether a value of decoded JSON has the annotated type.

    It is made once for each annotation: a report of thousands of records checks millions of values.
    """
    kind = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if kind is Any:
        return lambda value: True
    if kind is types.UnionType or kind is typing.Union:
        return _check_of_union(arguments)
    if kind in (int, float):
        return _is_number
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return functools.partial(_is_valid_instance, kind)
    if arguments:  # list[item] or dict[key, item]
        return functools.partial(_is_collection, kind, arguments[-1])
    return lambda value: isinstance(value, kind)


def _check_of_union(options: tuple[Any, ...]) -> Check:
    plain = frozenset(option for option in options if option in WITHOUT_PARTS)
    checks = [check_of(option) for option in options]

    def check(value: Any) -> bool:
        if type(value) in plain:  # the usual case: null, a string or a boolean
            return True
        return any(check(value) for check in checks)

    return check


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -LARGEST <= value <= LARGEST


def _is_valid_instance(kind: type, value: Any) -> bool:
    if not isinstance(value, kind):
        return False
    check_types(value)
    return True


def _is_collection(kind: type, annotation: Any, value: Any) -> bool:
    """Whether a value is a list or a dict whose items, or values, have the annotated type."""
    if not isinstance(value, kind):
        return False
    if annotation is Any:
        return True
    items = value.values() if isinstance(value, dict) else typing.cast(list, value)
    check = check_of(annotation)
    if check(0.5) and all(type(item) is float for item in items):  # quick, for the losses of a long run
        return all(-LARGEST <= item <= LARGEST for item in items)
    if annotation is float:
        return all(item is None or check(item) for item in items)
    return all(map(check, items))
