"""Write a record to `result.json` in the run's folder, and read it back."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from recipes.records import atomic_file
from recipes.records.record import (
    SCHEMA_VERSION,
    STATUSES,
    Error,
    Estimate,
    Evaluation,
    Memory,
    Model,
    Record,
    Speed,
    Training,
)
from recipes.records.validate import check_types

FILE_NAME = "result.json"
PARTS: dict[str, type] = {
    "model": Model,
    "training": Training,
    "evaluation": Evaluation,
    "speed": Speed,
    "memory": Memory,
    "error": Error,
    "estimate": Estimate,
}


def to_json(record: Record) -> str:
    """The record as JSON. Numbers that are not finite become null, because JSON has no such numbers."""

    def finite(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        if isinstance(value, list):
            return [finite(item) for item in value]
        return value

    values = finite(dataclasses.asdict(record))
    first = ["schema_version", "status"]
    return json.dumps({key: values.pop(key) for key in first} | values, indent=1, allow_nan=False)


def write(record: Record, folder: Path) -> None:
    """Write `result.json` atomically.

    Raises OSError when the folder cannot be written or the disk is full; an older record is then unchanged.
    """
    atomic_file.write(Path(folder, FILE_NAME), to_json(record).encode())


def read(folder: Path) -> Record:
    """The record in a run's folder. Raises FileNotFoundError, or ValueError where the file is not a valid record."""
    path = Path(folder, FILE_NAME)
    return from_values(json.loads(path.read_text()), str(path))


def from_values(values: Any, path: str = "this") -> Record:
    """The record that these values (decoded JSON) describe.

    Raises ValueError, which names `path`, for another schema version, fields too many or too few, and wrong types.
    """
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"{path} is not a record of schema version {SCHEMA_VERSION}.")
    try:
        parts = {key: kind(**values[key]) for key, kind in PARTS.items() if values.get(key) is not None}
        record = Record(**values | parts)
        check_types(record)
    except (TypeError, ValueError) as error:  # TypeError: a field too many or too few
        raise ValueError(f"{path} is not a valid record: {error}") from error
    if record.status not in STATUSES:
        raise ValueError(f"{path} is not a valid record: there is no status {record.status!r}")
    return record
