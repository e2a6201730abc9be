"""Write docs/keys.md from the comments in conf/, and docs/record.md from the record's dataclasses.

python tests/tools/reference_pages.py
"""

from __future__ import annotations

import re
from typing import Any

from checkout import ROOT

import json_schema

from legroom.cli import help_text

KEYS, RECORD = ROOT / "docs" / "keys.md", ROOT / "docs" / "record.md"
KEYS_HEAD = """# Keys

Written by `python tests/tools/reference_pages.py` from the comments in `conf/`. Every key can be typed as `key=value`;
`python train.py --help NAME` shows a menu or a section in full. In each menu the first option is the default. `...`
stands for a value that differs between the options; in brackets are the options that a line is about.
"""
RECORD_HEAD = """# The record

Written by `python tests/tools/reference_pages.py`: what `result.json` in a run's folder holds. Programs should read
[its JSON Schema](record.schema.json). Bytes are integers, times are seconds, and units are in the names. Null: this
device or this recipe has no such figure. [Architecture](architecture.md#the-record) says how figures come about.
"""
OPTION = re.compile(r"  (?P<name>[^\s=]+)\s+(?P<text>\S.*)")
KEY = re.compile(r"  (?P<name>[\w.]+)=(?P<value>.*?)(?:\s{2,}(?P<text>\S.*))?")
HEADING = re.compile(r"(?P<name>\w+|\+experiment/\w+=)(?:   .*)?")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """A Markdown table. Bars and angle brackets inside a cell are escaped."""
    cells = [
        " | ".join(re.sub(r"([|<])", r"\\\1", cell) for cell in row) for row in (head, ("---",) * len(head), *rows)
    ]
    return [f"| {line} |".replace("|  |", "| |") for line in cells] + [""]


def keys_page(text: str) -> str:
    """docs/keys.md. text: what --help prints."""
    menus, _, sections = text.partition("their options:\n")[2].partition("\nKeys:\n")
    lines = [*KEYS_HEAD.splitlines(), ""]
    options: list[tuple[str, ...]] = []
    keys: list[tuple[str, ...]] = []

    def end_of_menu() -> None:
        for head, rows in ((("option", "what it is"), options), (("key", "default", "meaning"), keys)):
            lines.extend(table(head, rows) if rows else [])
            rows.clear()

    for line in menus.splitlines():
        if heading := HEADING.fullmatch(line):
            end_of_menu()
            lines.extend([f"## {heading['name']}", ""])
        elif key := KEY.fullmatch(line):
            keys.append((f"`{key['name']}`", f"`{key['value']}`", key["text"] or ""))
        elif option := OPTION.fullmatch(line):
            options.append((f"`{option['name']}`", option["text"]))
    end_of_menu()
    lines += ["## Without a menu", ""]
    found = [KEY.fullmatch(line) for line in sections.splitlines()]
    rows = [(f"`{key['name']}`", f"`{key['value']}`", key["text"] or "") for key in found if key]
    return "\n".join([*lines, *table(("key", "default", "meaning"), rows)])


def record_page(schema: dict[str, Any]) -> str:
    """docs/record.md. schema: the JSON Schema of a record."""
    lines = [*RECORD_HEAD.splitlines(), ""]
    parts = {"Record": schema, **schema["$defs"]}
    for name, part in parts.items():
        description = " ".join((part["description"] or "").split())
        lines += [f"## {name}", "", description, ""]
        rows = [(f"`{key}`", kind(value), value.get("description", "")) for key, value in part["properties"].items()]
        lines += table(("field", "type", "meaning"), rows)
    return "\n".join(lines)


def kind(value: dict[str, Any]) -> str:
    """The type of a field in a word or two: `[Model](#model) or null`."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(kind(each) for each in value["anyOf"])
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    named = [value["type"]] if isinstance(value["type"], str) else value["type"]
    of = f" of {kind(value['items'])}" if "items" in value else ""
    return " or ".join(f"{name}{of}" if name == "array" else name for name in named)


def pages() -> dict[Any, str]:
    """The file of each page, and what it should hold."""
    return {KEYS: keys_page(help_text.describe(ROOT / "conf")), RECORD: record_page(json_schema.schema())}


if __name__ == "__main__":
    for file, content in pages().items():
        file.write_text(content)
