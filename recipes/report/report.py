"""Records -> a table, CSV and pictures. All of it is made from the records alone, and the same each time.

What differs between jobs is found in `labels`, the rows are made in `rows`, their words in `tables`, the pictures in
`plots`. Imports nothing heavy: the parent process reads it; matplotlib comes with `plots.draw`.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

from recipes.errors import Refusal
from recipes.records import atomic_file, record_file
from recipes.records.record import Error, Evaluation, Record
from recipes.report import reference
from recipes.report.rows import Row, Spread, Table, read_all, table  # noqa: F401 - this module is where others find them
from recipes.report.tables import columns, markdown, remarks, screen_text  # noqa: F401


def compare(records: list[Record], baseline: str | None = None, published: dict[str, dict] | None = None) -> Table:
    """The table of the records, as `table` makes it. Those of `+experiment/guide=...` are put beside the guide by default:

    its figures as the published ones, its first row (the first such job that ended ok) as the baseline.
    """
    of_guide = any(map(reference.of_guide, records))
    if published is None and of_guide:
        published = reference.guide()
    made = table(records, baseline, published)
    if baseline is None and of_guide:
        made.baseline = next(
            (
                row
                for row in made.rows
                if row.done
                and row.facts["experiment"] == reference.GUIDE_BASELINE
                and any(map(reference.of_guide, row.runs))
            ),
            made.baseline,
        )
    return made


def make(
    folders: list[Path | str],
    target: Path | str,
    baseline: str | None = None,
    published: dict[str, dict] | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[Path]:
    """Read all records in and below the folders, and write table, CSV and pictures into the folder `target`.

    baseline, published: see `compare`. warn: is given a line on each file left out (default: to stderr).
    Returns the paths written. Raises Refusal (no folder, no records, an unknown baseline) or OSError (`target`).
    """
    records, warnings = read_all(folders)
    warn = warn or _to_stderr
    for line in warnings:
        warn(line)
    if not records:
        raise Refusal(f"There are no records in {', '.join(map(str, folders))}.")
    return write(compare(records, baseline, published), target, warn)


def write(made: Table, target: Path | str, warn: Callable[[str], None] | None = None) -> list[Path]:
    """Write a table's files and pictures, each whole or not at all. Returns their paths. Raises OSError."""
    from recipes.report import plots

    try:
        pictures = plots.draw(made)
    except ImportError:
        pictures = {}
        (warn or _to_stderr)("there are no pictures: they need matplotlib (pip install matplotlib).")
    texts = {"results.jsonl": jsonl(made), "results.csv": csv_text(made), "table.md": markdown(made, list(pictures))}
    target = Path(target)
    target.mkdir(parents=True, exist_ok=True)
    contents = {target / name: text.encode() for name, text in texts.items()}
    contents |= {target / name: picture for name, picture in pictures.items()}
    for path, content in contents.items():
        atomic_file.write(path, content)
    return list(contents)


def prepare() -> None:
    """Load what draws, at a moment when nobody waits for it."""
    with contextlib.suppress(Exception):  # it is not there, or its settings are wrong: who draws will say so
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401


def _to_stderr(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def jsonl(made: Table) -> str:
    """Every record, whole, a line each, in the table's order."""
    return "".join(json.dumps(json.loads(record_file.to_json(run))) + "\n" for row in made.rows for run in row.runs)


def csv_text(made: Table) -> str:
    """A flat line a job, repeats apart. Bytes and seconds as in the record; empty: not to be had."""
    lines = []
    for row in made.rows:
        for run in row.runs:
            line = {
                "status": run.status,
                "config_key": run.config_key,
                **{key: row.label.get(key) for key in made.keys},
                "measure.repeat": (run.config.get("measure") or {}).get("repeat"),
                "train.seed": (run.config.get("train") or {}).get("seed"),
            }
            line |= {"first_loss": run.training.losses[0] if run.training.losses else None}
            line |= _flat(run.training) | _flat(run.speed) | _flat(run.memory)
            line |= {f"evaluation_{key}": value for key, value in _flat(run.evaluation or Evaluation(None)).items()}
            line |= {key: run.environment.get(key) for key in ("device_name", "jobs_at_once", "started_at")}
            error = run.error or Error("", "", "")
            lines.append(
                line
                | {
                    "error_phase": error.phase,
                    "error_type": error.type,
                    "error_message": " ".join(error.message.split()),
                    "error_hint": error.hint,
                }
            )
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(part) -> dict:
    """The single values of a record's part."""
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if not f.type.startswith(("list", "dict"))}


def for_screen(folders: list[Path | str], baseline: str | None = None, published: dict[str, dict] | None = None) -> str:
    """The table of all records in and below the folders, as wide as the terminal. Raises Refusal as `make` does."""
    return screen_text(compare(read_all(folders)[0], baseline, published))
