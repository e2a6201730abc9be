"""Generate the JSON Schema of `result.json` from the record's dataclasses.

python tests/tools/json_schema.py > docs/record.schema.json
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from typing import Any

import checkout  # noqa: F401 - `legroom` beside this file

from legroom.records.record import SCHEMA_VERSION, STATUSES, Record

JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a record."""
    definitions: dict[str, Any] = {}
    record = _object(Record, definitions)
    record["properties"]["status"]["enum"] = list(STATUSES)
    record["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    record["required"] += ["schema_version", "status"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Legroom record",
        **record,
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    """The content of docs/record.schema.json."""
    return json.dumps(schema(), indent=1) + "\n"


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a dataclass. Those of dataclasses inside it are added to `definitions`."""
    annotations, comments = typing.get_type_hints(kind), _comments(kind)
    fields = dataclasses.fields(kind)
    properties = {}
    for field in fields:
        properties[field.name] = _value(annotations[field.name], definitions)
        if field.name in comments:
            properties[field.name]["description"] = comments[field.name]
    no_default = (dataclasses.MISSING, dataclasses.MISSING)
    return {
        "description": inspect.getdoc(kind),
        "type": "object",
        "properties": properties,
        "required": [field.name for field in fields if (field.default, field.default_factory) == no_default],
        "additionalProperties": False,
    }


def _value(annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value with this annotation."""
    kind, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if kind is types.UnionType or kind is typing.Union:
        (other,) = (option for option in arguments if option is not type(None))
        value = _value(other, definitions)
        if "$ref" in value:
            return {"anyOf": [value, {"type": "null"}]}
        return value | {"type": [value["type"], "null"]}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    value: dict[str, Any] = {"type": JSON_TYPES[kind]}
    if kind is list and arguments:
        value["items"] = _value(arguments[0], definitions)
    if kind is dict and arguments:
        value["additionalProperties"] = _value(arguments[1], definitions)
    return value


def _comments(kind: type) -> dict[str, str]:
    """Field -> the comment at the end of its line in the source."""
    found = re.finditer(r"^    (\w+): [^#\n]*# (.+)$", inspect.getsource(kind), flags=re.MULTILINE)
    return {match[1]: match[2] for match in found}


if __name__ == "__main__":
    print(text(), end="")
