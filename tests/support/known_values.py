"""Values as they are kept beside a test, to be compared at each run.

`data_regression.check(known(values))` compares with the file of the test's name in the folder of the test file's name.
After a change that is meant: `pytest THE_TEST --force-regen`, and read what git says has changed.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

DIGITS = 9  # that are the same on any machine: the last bits of a sum or an exponential are not


def known(value: Any) -> Any:
    """The value of numbers, texts, lists and dictionaries alone: dataclasses by their fields, others by their text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return known({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, dict):
        return {key if isinstance(key, (str, int)) else str(key): known(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [known(inner) for inner in value]
    if isinstance(value, (set, frozenset)):
        return sorted(known(inner) for inner in value)
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value.as_posix() if isinstance(value, Path) else str(value)
