"""What a value has that a JSON Schema does not allow: the part of JSON Schema and of Kubernetes' dialect of it that the
schemas in tests/cli/submit/schemas use."""

from __future__ import annotations

import re
from typing import Any

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}


def problems(value: Any, schema: dict[str, Any], where: str = "", root: dict[str, Any] | None = None) -> list[str]:
    """A line for each; empty for a value that the schema takes.

    A key that an object's `properties` lack is one, too, unless the schema allows others explicitly: Kubernetes drops
    such a key without a word.
    """
    root = root or schema
    if "$ref" in schema:
        found = root
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        return problems(value, found, where, root)
    lines = []
    for several in ("anyOf", "oneOf"):
        tried = [problems(value, each, where, root) for each in schema.get(several, ())]
        if tried and all(tried):
            lines.append(f"{where}: {value!r} is none of {several}: {min(tried, key=len)}")
    for each in schema.get("allOf", ()):
        lines += problems(value, each, where, root)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if schema.get("x-kubernetes-int-or-string"):
        kinds = ["integer", "string"]
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [*lines, f"{where}: {value!r} is no {' or '.join(kinds)}"]
    if "enum" in schema and value not in schema["enum"]:
        lines.append(f"{where}: {value!r} is none of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        lines.append(f"{where}: {value!r} is not {schema['const']!r}")
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        lines.append(f"{where}: {value!r} does not match {schema['pattern']}")
    if isinstance(value, list):
        for index, each in enumerate(value):
            lines += problems(each, schema.get("items", {}), f"{where}[{index}]", root)
    if isinstance(value, dict):
        lines += _of_object(value, schema, where, root)
    return lines


def _of_object(value: dict, schema: dict[str, Any], where: str, root: dict[str, Any]) -> list[str]:
    lines = [f"{where}.{key} is missing" for key in schema.get("required", ()) if key not in value]
    named, patterns = schema.get("properties"), schema.get("patternProperties", {})
    further = schema.get("additionalProperties", named is None)
    for key, each in value.items():
        matching = [inner for pattern, inner in patterns.items() if re.search(pattern, key)]
        if named and key in named:
            lines += problems(each, named[key], f"{where}.{key}", root)
        elif matching:
            lines += problems(each, matching[0], f"{where}.{key}", root)
        elif isinstance(further, dict):
            lines += problems(each, further, f"{where}.{key}", root)
        elif not further and not schema.get("x-kubernetes-preserve-unknown-fields"):
            lines.append(f"{where}.{key} is not known")
    return lines


def _is(value: Any, kind: str) -> bool:
    if kind == "null":
        return value is None
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind])
