"""What the schema allows as the value of a key."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from legroom import suggestions

LARGEST_INTEGER = 2**62  # torch counts in 64 bits, with a sign


def value_problems(node: Any, prefix: str = "") -> list[str]:
    """Values that the schema does not allow: choices, patterns and bounds. node: a dataclass of the schema."""
    problems = []
    for field in dataclasses.fields(node):
        key = prefix + field.name
        value = getattr(node, field.name)
        if dataclasses.is_dataclass(value):
            problems += value_problems(value, key + ".")
        elif value is not None:
            problem = _value_problem(key, value, field.metadata)
            if problem is not None:
                problems.append(problem)
    return problems


def _value_problem(key: str, value: Any, rules: Mapping[str, Any]) -> str | None:
    """Why a value is not allowed, or None. rules: the metadata of the key's field."""
    if "choices" in rules and value not in rules["choices"]:
        choices = ["null" if choice is None else str(choice) for choice in rules["choices"]]
        return f"{key}={value} is not one of {', '.join(choices)}.{suggestions.nearest(value, choices)}"
    empty = suggestions.if_empty(key, value)
    if empty is not None:
        return empty
    if "pattern" in rules and not re.fullmatch(rules["pattern"], value):
        return f"{key}={value} cannot be read. Type it as in {key}={rules['example']}."
    # `not value >= ...`, so that NaN is refused as well
    if "minimum" in rules and not value >= rules["minimum"]:
        return f"{key}={value} is too small: it must be at least {rules['minimum']}."
    if "below" in rules and not value < rules["below"]:
        return f"{key}={value} is too large: it must be below {rules['below']}."
    if isinstance(value, int) and value > LARGEST_INTEGER:
        return f"{key}={value} is too large: it must be at most {LARGEST_INTEGER}."
    if isinstance(value, float) and value == math.inf:
        return f"{key}={value} must be a finite number."
    return None
