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
from legroom.records.validate import check_types, field_checks, has_type, type_hints

FILE_NAME = "result.json"
USUAL_BYTES = 2**16  # of a record
MOST_BYTES = 2**28  # of a record: ten million steps
# Sections of a configuration, and entries of an environment, that commands read.
READ = ("model", "data", "adapter", "train", "eval", "save", "launch", "parallelism")
READ_OF_ENVIRONMENT = ("device", "device_name")
ENVIRONMENT_TYPES = {"versions": dict, "variables": dict, "device": str | None, "device_name": str | None}


def to_values(record: Record) -> dict[str, Any]:
    """The record in JSON's types, in the order of its file.

    Numbers that are not finite are None, because JSON has no such numbers.
    """
    values = _finite(record)
    return {"schema_version": values.pop("schema_version"), "status": values.pop("status"), **values}


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


def to_line(record: Record) -> str:
    """The record on one line of JSON: the same values as in its file."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    first = {"schema_version": values.pop("schema_version"), "status": values.pop("status")}
    try:
        return json.dumps(first | values, default=_fields, allow_nan=False)
    except ValueError:  # a number that is not finite: no record that was read from a file has one
        return json.dumps(to_values(record))


def _fields(part: Any) -> dict[str, Any]:
    """The fields of a part of a record, which json asks for when it meets one."""
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}


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
        parts = {}
        for name, kind in config.node_types(Record).items():
            if dataclasses.is_dataclass(kind) and values.get(name) is not None:
                parts[name] = _instance(kind, values[name], name)
        record = _instance(Record, values | parts, "it")
        check_types(record)
        check_config(record.config)
        _check_environment(record.environment)
        if record.recipe != "estimate":  # that of a script has its GPU alone
            _refuse_lacking("config", [name for name in READ if record.config.get(name) is None])
            _refuse_lacking("environment", [key for key in READ_OF_ENVIRONMENT if key not in record.environment])
    except ValueError as error:
        raise ValueError(f"{path} is not a valid record: {error}") from error
    if record.status not in STATUSES:
        raise ValueError(f"{path} is not a valid record: there is no status {record.status!r}")
    return record


def _instance(kind: Any, values: Any, name: str) -> Any:
    """The dataclass with these values. Raises ValueError, which names the fields that are too many or too few."""
    if not isinstance(values, dict):
        raise ValueError(f"{name} is not an object with fields")
    fields = dataclasses.fields(kind)
    unknown = sorted(set(values) - {field.name for field in fields})
    if unknown:
        raise ValueError(f"{name} has fields that no record has: {', '.join(map(printable, unknown[:3]))}")
    missing = []
    for field in fields:
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if not has_default and field.name not in values:
            missing.append(field.name)
    _refuse_lacking(name, missing)
    return kind(**values)


def _refuse_lacking(name: str, missing: list[str]) -> None:
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}")


def check_config(values: dict[str, Any]) -> None:
    """Check the types of a resolved configuration against the schema. Raises ValueError, which names the key.

    Keys that the schema does not have, or no longer, are not looked at, and a key may be missing.
    """
    for name, annotation in type_hints(config.Config).items():
        section = values.get(name)
        if section is None:
            continue
        if not dataclasses.is_dataclass(annotation):
            if not has_type(section, annotation):
                raise ValueError(f"config.{name} is not {annotation}")
            continue
        if not isinstance(section, dict):
            raise ValueError(f"config.{name} is not a dictionary")
        for key, _, check in field_checks(annotation):
            value = section.get(key)
            if value is not None and not check(value):
                raise ValueError(f"config.{name}.{key} is not {type_hints(annotation)[key]}")


def _check_environment(environment: dict[str, Any]) -> None:
    """Check the types of those values of a record's environment that are read. Raises ValueError."""
    for name, kind in ENVIRONMENT_TYPES.items():
        if name in environment and not has_type(environment[name], kind):
            raise ValueError(f"environment.{name} is not {kind}")
