"""Make the report of a sweep, or of several, from its records: a table, CSV and pictures.

matplotlib and rich are imported when they are needed: the parent process imports this module before a sweep.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from legroom.errors import Refusal
from legroom.records import atomic_file
from legroom.records.record import Record
from legroom.report import reference
from legroom.report.files import csv_text, jsonl
from legroom.report.page import sweep_page
from legroom.report.read import read_all, read_with_folders
from legroom.report.rows import Row, Table, table
from legroom.report.tables import markdown


def compare(records: list[Record], baseline: str | None = None, published: dict[str, dict] | None = None) -> Table:
    """The table of the records, as `rows.table` makes it.

    For records of `+experiment/guide=...` the defaults are the guide's: its published figures, and as the baseline the
    first job that ended ok of its own baseline.
    """
    of_guide = any(map(reference.of_guide, records))
    made = table(records, baseline, reference.guide() if published is None and of_guide else published)
    if of_guide:
        made.rows.sort(key=_place_in_guide)  # stable: other rows keep their order, behind the guide's
    if baseline is None and of_guide:
        made.baseline = next((row for row in made.rows if _is_guide_baseline(row)), made.baseline)
    return made


def _place_in_guide(row: Row) -> int:
    experiments = reference.guide_experiments()
    name = row.facts["experiment"]
    return experiments.index(name) if name in experiments else len(experiments)


def _is_guide_baseline(row: Row) -> bool:
    ours = any(map(reference.of_guide, row.runs))
    return ours and row.done and row.facts["experiment"] == reference.GUIDE_BASELINE


def make(
    folders: list[Path | str],
    target: Path | str,
    baseline: str | None = None,
    published: dict[str, dict] | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[Path]:
    """Read all records in and below the folders, and write table, CSV and pictures into the folder `target`.

    baseline, published: see `compare`. warn: called with a line for each file left out (default: print it on stderr).
    Returns the paths written. Raises Refusal (no folder, no records, an unknown baseline) or OSError (`target`).
    """
    found, warnings = read_with_folders(folders)
    warn = warn or _to_stderr
    for line in warnings:
        warn(line)
    if not found:
        raise Refusal(f"There are no records in {', '.join(map(str, folders))}.")
    of_records = {id(record): folder for record, folder in found}
    return write(compare([record for record, _ in found], baseline, published), target, warn, of_records)


def write(
    made: Table,
    target: Path | str,
    warn: Callable[[str], None] | None = None,
    folders: Mapping[int, Path] | None = None,
) -> list[Path]:
    """Write a table's files, pictures and page, each atomically. Returns their paths. Raises OSError.

    folders: id of a record -> its folder, for the pages of the jobs.
    """
    from legroom.report import plots

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
    return [*contents, *sweep_page.write(made, target, folders or {})]


def prepare() -> None:
    """Import matplotlib in advance, while the first workers start."""
    with contextlib.suppress(Exception):  # missing, or with wrong settings: `write` reports it
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401


def _to_stderr(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def for_screen(folders: list[Path | str], baseline: str | None = None, published: dict[str, dict] | None = None) -> str:
    """The table of all records in and below the folders, as wide as the terminal. Raises Refusal as `make` does."""
    from legroom.report.screen_table import screen_text

    return screen_text(compare(read_all(folders)[0], baseline, published))
