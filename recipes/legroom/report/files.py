"""A table's records as JSON lines and as CSV."""

import csv
import dataclasses
import io
from typing import Any

from legroom.estimator.speed.summary import OPERATION_GROUPS
from legroom.records import record_file
from legroom.records.record import Error, Evaluation, Record
from legroom.report.rows import Row, Table


def jsonl(table: Table) -> str:
    """Every record as one line of JSON, in the table's order."""
    return "".join(f"{record_file.to_line(run)}\n" for run in table.runs)


def csv_text(table: Table) -> str:
    """One line per job, repeats apart, with the record's own units; empty where a record has no such figure."""
    lines = []
    for row in table.rows:
        lines += [_csv_line(run, row, table.keys) for run in row.runs]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _csv_line(run: Record, row: Row, keys: list[str]) -> dict[str, Any]:
    """A run's line: column -> value."""
    line: dict[str, Any] = {"status": run.status, "config_key": run.config_key}
    for key in keys:
        line[key] = row.label.get(key)
    measure = run.config.get("measure") or {}
    train = run.config.get("train") or {}
    line["measure.repeat"] = measure.get("repeat")
    line["train.seed"] = train.get("seed")
    line["first_loss"] = run.training.losses[0] if run.training.losses else None
    for part in (run.training, run.speed, run.memory):
        line |= _single_values(part)
    group_seconds = run.operations.seconds() if run.operations else {}
    for group in OPERATION_GROUPS:
        line[f"{group.replace('-', '_')}_seconds"] = group_seconds.get(group)
    for key, value in _single_values(run.evaluation).items():
        line[f"evaluation_{key}"] = value
    # The column evaluation_seconds is that of the last evaluation.
    line["train_evaluation_seconds"] = run.speed.evaluation_seconds
    for key in ("device_name", "jobs_at_once", "started_at"):
        line[key] = run.environment.get(key)
    error = run.error or Error("", "", "")
    line["error_phase"] = error.phase
    line["error_type"] = error.type
    line["error_message"] = " ".join(error.message.split())
    line["error_hint"] = error.hint
    return line


def _single_values(part: Any) -> dict[str, Any]:
    """The values of a record's part that are no lists or dicts; all None for an evaluation that was not made."""
    values = {}
    for field in dataclasses.fields(Evaluation if part is None else part):
        if not str(field.type).startswith(("list", "dict")):
            values[field.name] = getattr(part, field.name, None)
    return values
