"""A table's records as JSON lines and as CSV."""

import csv
import dataclasses
import io
import json
from typing import Any

from legroom.records import record_file
from legroom.records.record import OPERATION_GROUPS, Error, Evaluation, Record
from legroom.report.rows import Row, Table


def jsonl(made: Table) -> str:
    """Every record as one line of JSON, in the table's order."""
    return "".join(json.dumps(record_file.to_values(run)) + "\n" for row in made.rows for run in row.runs)


def csv_text(made: Table) -> str:
    """One line per job, repeats apart, with the record's own units; empty where a record has no such figure."""
    lines = [_csv_line(run, row, made.keys) for row in made.rows for run in row.runs]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _csv_line(run: Record, row: Row, keys: list[str]) -> dict[str, Any]:
    error, seconds = run.error or Error("", "", ""), run.operations.seconds() if run.operations else {}
    return (
        {"status": run.status, "config_key": run.config_key}
        | {key: row.label.get(key) for key in keys}
        | {
            "measure.repeat": (run.config.get("measure") or {}).get("repeat"),
            "train.seed": (run.config.get("train") or {}).get("seed"),
            "first_loss": run.training.losses[0] if run.training.losses else None,
        }
        | _single_values(run.training)
        | _single_values(run.speed)
        | _single_values(run.memory)
        | {f"{group.replace('-', '_')}_seconds": seconds.get(group) for group in OPERATION_GROUPS}
        | {f"evaluation_{key}": value for key, value in _single_values(run.evaluation).items()}
        | {"train_evaluation_seconds": run.speed.evaluation_seconds}  # evaluation_seconds is that of the last one
        | {key: run.environment.get(key) for key in ("device_name", "jobs_at_once", "started_at")}
        | {
            "error_phase": error.phase,
            "error_type": error.type,
            "error_message": " ".join(error.message.split()),
            "error_hint": error.hint,
        }
    )


def _single_values(part: Any) -> dict[str, Any]:
    """The values of a record's part that are no lists or dicts; all None for an evaluation that was not made."""
    fields = dataclasses.fields(Evaluation if part is None else part)
    return {
        field.name: getattr(part, field.name, None)
        for field in fields
        if not str(field.type).startswith(("list", "dict"))
    }
