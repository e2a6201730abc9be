"""Make the report of a sweep, or of several, from its records: a table, CSV, a picture and a page.

matplotlib and rich are imported when they are needed: the parent process imports this module before a sweep.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from legroom.errors import Refusal
from legroom.records import atomic_file
from legroom.report.files import csv_text, jsonl
from legroom.report.page import sweep_page
from legroom.report.read import read_with_folders
from legroom.report.rows import Table, make_table
from legroom.report.tables import markdown

PICTURE = "tradeoff.png"


def make(folders: Sequence[Path | str], target: Path | str, baseline: str | None = None) -> tuple[Table, list[Path]]:
    """Read all records in and below the folders, and write table, CSV, picture and page into the folder `target`.

    baseline: see `rows.make_table`. Prints a line on stderr for each file left out. Returns the table, and the paths
    written. Raises Refusal (no folder, no records, an unknown baseline) or OSError (`target`).
    """
    records, warnings = read_with_folders(folders)
    for line in warnings:
        print(f"warning: {line}", file=sys.stderr)
    if not records:
        raise Refusal(f"There are no records in {', '.join(map(str, folders))}.")
    table = make_table([record for record, _ in records], baseline)
    folder_of = {id(record): folder for record, folder in records}
    return table, write(table, Path(target), folder_of)


def write(table: Table, target: Path, folders: Mapping[int, Path]) -> list[Path]:
    """Write a table's files, picture and page, each atomically. Returns their paths. Raises OSError.

    folders: id of a record -> its folder, for the pages of the jobs.
    """
    from legroom.report import tradeoff_plot

    picture = None
    if not table.of_gpus:  # a trade-off would rank the cards' sizes
        picture = tradeoff_plot.draw(table)
    contents = {
        "results.jsonl": jsonl(table).encode(),
        "results.csv": csv_text(table).encode(),
        "table.md": markdown(table, PICTURE if picture else None).encode(),
    }
    if picture is not None:
        contents[PICTURE] = picture
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, content in contents.items():
        atomic_file.write(target / name, content)
        paths.append(target / name)
    return paths + sweep_page.write(table, target, folders)


def prepare() -> None:
    """Import matplotlib in advance, while the first workers start."""
    with contextlib.suppress(Exception):  # with wrong settings: `write` reports it
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
