"""Read what `legroom measure --share` wrote and people have sent."""

from __future__ import annotations

import json
from pathlib import Path

import checkout  # noqa: F401 - `legroom` beside this file

from legroom.errors import Refusal
from legroom.foresight.programs.measure import COMPARED, SharedRecord


def read(path: Path) -> SharedRecord:
    """A record that somebody shared. Raises Refusal, with the file, for one that is not of this schema."""
    try:
        values = json.loads(path.read_text())
        record = SharedRecord(**values)
    except (OSError, ValueError, TypeError) as error:
        raise Refusal(f"{path}: {error}") from error
    numbers = [*record.measured.values(), *(record.predicted or {}).values()]
    right = record.schema == 1 and all(value is None or isinstance(value, int | float) for value in numbers)
    if not right or set(record.measured) != set(COMPARED):
        raise Refusal(f"{path}: it is no record of `legroom measure --share` of schema 1.")
    return record
