"""Make the report of a sweep, or of several, from its records: a table, CSV and pictures.

matplotlib and rich are imported when they are needed: the parent process imports this module before a sweep.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from legroom.errors import Refusal
from legroom.records import atomic_file
from legroom.records.record import Record
from legroom.report import reference
from legroom.report.files import csv_text, jsonl
from legroom.report.page import sweep_page
from legroom.report.read import read_with_folders
from legroom.report.rows import Row, Table, table
from legroom.report.tables import markdown


def compare(records: list[Record], baseline: str | None = None) -> Table:
    """The table of the records, as `rows.table` makes it.

    For records of `+experiment/guide=...` the defaults are the guide's: its published figures, and as the baseline the
    first job that ended ok of its own baseline.
    """
    if not any(map(reference.of_guide, records)):
        return table(records, baseline)
    made = table(records, baseline, reference.guide())
    places = {name: place for place, name in enumerate(reference.guide_experiments())}
    made.rows.sort(key=lambda row: places.get(row.facts["experiment"], len(places)))  # stable: others come behind
    if baseline is None:
        made.baseline = next((row for row in made.rows if _is_guide_baseline(row)), made.baseline)
    return made


def _is_guide_baseline(row: Row) -> bool:
    ours = any(map(reference.of_guide, row.runs))
    return ours and row.done and row.facts["experiment"] == reference.GUIDE_BASELINE


def make(folders: Sequence[Path | str], target: Path | str, baseline: str | None = None) -> tuple[Table, list[Path]]:
    """Read all records in and below the folders, and write table, CSV and pictures into the folder `target`.

    baseline: see `compare`. Prints a line on stderr for each file left out. Returns the table, and the paths written.
    Raises Refusal (no folder, no records, an unknown baseline) or OSError (`target`).
    """
    found, warnings = read_with_folders(folders)
    for line in warnings:
        print(f"warning: {line}", file=sys.stderr)
    if not found:
        raise Refusal(f"There are no records in {', '.join(map(str, folders))}.")
    made = compare([record for record, _ in found], baseline)
    return made, write(made, Path(target), {id(record): folder for record, folder in found})


def write(made: Table, target: Path, folders: Mapping[int, Path]) -> list[Path]:
    """Write a table's files, pictures and page, each atomically. Returns their paths. Raises OSError.

    folders: id of a record -> its folder, for the pages of the jobs.
    """
    from legroom.report import plots

    pictures = plots.draw(made)
    texts = {"results.jsonl": jsonl(made), "results.csv": csv_text(made), "table.md": markdown(made, list(pictures))}
    target.mkdir(parents=True, exist_ok=True)
    contents = {target / name: text.encode() for name, text in texts.items()}
    contents |= {target / name: picture for name, picture in pictures.items()}
    for path, content in contents.items():
        atomic_file.write(path, content)
    return [*contents, *sweep_page.write(made, target, folders)]


def prepare() -> None:
    """Import matplotlib in advance, while the first workers start."""
    with contextlib.suppress(Exception):  # with wrong settings: `write` reports it
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
