"""docs/record.schema.json describes the records that the code writes."""

from __future__ import annotations

import json
import subprocess
import sys

import json_schema
from conftest import ROOT, compose

from legroom.records import record_file
from legroom.records.record import STATUSES

FILE = ROOT / "docs" / "record.schema.json"


def test_the_file_in_docs_is_what_the_command_prints():
    command = [sys.executable, ROOT / "tests" / "tools" / "json_schema.py"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert FILE.read_text() == printed, "run: python tests/tools/json_schema.py > docs/record.schema.json"


def test_a_record_has_the_properties_of_the_schema():
    values, schema = json.loads(record_file.to_json(compose("device=cpu").record)), json_schema.schema()
    assert set(values) == set(schema["properties"]) and set(schema["required"]) <= set(values)
    for part in ("training", "speed", "memory"):
        assert set(values[part]) == set(schema["$defs"][part.capitalize()]["properties"])
    assert schema["properties"]["status"]["enum"] == list(STATUSES)


def test_what_may_be_null_and_what_a_field_is_are_stated():
    memory = json_schema.schema()["$defs"]["Memory"]["properties"]
    assert memory["peak_tensor_bytes"]["type"] == ["integer", "null"]
    assert memory["largest_bytes"]["additionalProperties"] == {"type": "integer"}
    assert memory["other_bytes"]["description"] == "inputs, buffers, temporaries"
