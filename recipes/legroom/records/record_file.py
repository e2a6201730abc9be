"""Write a record to `result.json` in the run's folder, and read it back."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from legroom import config
from legroom.records import atomic_file, regular_file
from legroom.records.printable import printable
from legroom.records.record import SCHEMA_VERSION, STATUSES, Record
from legroom.records.validate import check_types, has_type, type_hints

FILE_NAME = "result.json"
USUAL_BYTES = 2**16  # of a record
MOST_BYTES = 2**28  # of a record: ten million steps
_KINDS = config.node_types(Record).items()
PARTS = {name: kind for name, kind in _KINDS if isinstance(kind, type) and dataclasses.is_dataclass(kind)}
READ = ("model", "data", "adapter", "train", "eval", "save", "launch", "parallelism")  # of a configuration, by commands


def to_values(record: Record) -> dict[str, Any]:
    """The record in JSON's types, in the order of its file. Numbers that are not finite are None, because JSON has no
    such numbers."""
    values = {field.name: _finite(getattr(record, field.name)) for field in dataclasses.fields(record)}
    first = ["schema_version", "status"]
    return {key: values.pop(key) for key in first} | values


def _finite(value: Any) -> Any:
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {field.name: _finite(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def to_json(record: Record) -> str:
    """The record as its file has it."""
    return json.dumps(to_values(record), indent=1, allow_nan=False)


def write(record: Record, folder: Path) -> None:
    """Write `result.json` atomically.

    Raises OSError when the folder cannot be written or the disk is full; an older record is then unchanged.
    """
    atomic_file.write(Path(folder, FILE_NAME), to_json(record).encode())


def prepare(folder: Path) -> None:
    """Clear what a killed run has left of its record, and try to write one. Raises OSError if that fails."""
    path = Path(folder, FILE_NAME)
    atomic_file.clear(path)
    atomic_file.try_writing(path, USUAL_BYTES)


def read(folder: Path) -> Record:
    """The record in a run's folder. Raises OSError without a file, ValueError where it is not a valid record."""
    path = Path(folder, FILE_NAME)
    try:
        values = regular_file.decode_json(regular_file.read(path, MOST_BYTES))
    except ValueError as error:
        raise ValueError(f"{path} is not a valid record: {error}") from error
    return from_values(values, str(path))


def from_values(values: Any, path: str = "this") -> Record:
    """The record that these values (decoded JSON) describe.

    Raises ValueError, which names `path`, for another schema version, fields too many or too few, and wrong types.
    """
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"{path} is not a record of schema version {SCHEMA_VERSION}.")
    try:
        parts = {key: _made(kind, values[key], key) for key, kind in PARTS.items() if values.get(key) is not None}
        record = _made(Record, values | parts, "it")
        check_types(record)
        check_config(record.config)
        _check_environment(record.environment)
        if record.recipe != "estimate":  # that of a script has its GPU alone
            _refuse_lacking("config", [name for name in READ if record.config.get(name) is None])
            _refuse_lacking("environment", [key for key in ("device", "device_name") if key not in record.environment])
    except ValueError as error:
        raise ValueError(f"{path} is not a valid record: {error}") from error
    if record.status not in STATUSES:
        raise ValueError(f"{path} is not a valid record: there is no status {record.status!r}")
    return record


def _made(kind: type, values: Any, name: str) -> Any:
    """The dataclass with these values. Raises ValueError, which names the fields that are too many or too few."""
    if not isinstance(values, dict):
        raise ValueError(f"{name} is not an object with fields")
    fields = dataclasses.fields(kind)
    if unknown := sorted(set(values) - {field.name for field in fields}):
        raise ValueError(f"{name} has fields that no record has: {', '.join(map(printable, unknown[:3]))}")
    required = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]
    _refuse_lacking(name, [field for field in required if field not in values])
    return kind(**values)


def _refuse_lacking(name: str, missing: list[str]) -> None:
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}")


def check_config(values: dict[str, Any]) -> None:
    """Check the types of a resolved configuration against the schema. Raises ValueError, which names the key.

    Keys that the schema does not have, or no longer, are not looked at, and a key may be missing.
    """
    for name, annotation in type_hints(config.Config).items():
        section, nested = values.get(name), dataclasses.is_dataclass(annotation)
        if section is None:
            continue
        if not has_type(section, dict if nested else annotation):
            raise ValueError(f"config.{name} is not {'a dictionary' if nested else annotation}")
        for key, leaf in type_hints(annotation).items() if nested else ():
            if section.get(key) is not None and not has_type(section[key], leaf):
                raise ValueError(f"config.{name}.{key} is not {leaf}")


def _check_environment(environment: dict[str, Any]) -> None:
    """Check the types of those values of a record's environment that are read. Raises ValueError."""
    for name, kind in (("versions", dict), ("variables", dict), ("device", str | None), ("device_name", str | None)):
        if name in environment and not has_type(environment[name], kind):
            raise ValueError(f"environment.{name} is not {kind}")
