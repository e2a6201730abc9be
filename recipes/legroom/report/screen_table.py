"""The table for a terminal, with `rich`."""

import io
import shutil
import sys

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from legroom.report.rows import Table
from legroom.report.tables import LEFT_ALIGNED, columns, fastest, number_notes, remarks

NO_TERMINAL_WIDTH = 160  # characters, where stdout is not a terminal
MOST_ROWS = 200  # that a terminal is shown
JOB_WIDTH = 18  # the least width of the label once its columns are one
# Columns that a narrow terminal does without, the first ones first.
LEFT_OUT_FIRST = (
    "time s",
    "steps measured",
    "samples/s spread",
    "evaluation",
    "step ms",
    "final loss",
    "runs",
    "samples/s diff.",
    "memory diff.",
    "optimizer states MiB",
    "optimizer states GiB",
)


def screen_text(table: Table, width: int | None = None) -> str:
    """Table, remarks and notes for a terminal of `width` characters (None: the width of this one).

    Where the table is too wide, it loses columns, then the columns of the label become one.
    """
    if width is None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else NO_TERMINAL_WIDTH
    table = fastest(table, MOST_ROWS)
    cells = columns(table)
    notes = cells.pop("note", [""] * len(table.rows))
    numbers = {}
    if len(set(notes)) > 1:
        numbers = number_notes(notes)
    for i, note in enumerate(notes):
        if note in numbers:
            cells["status"][i] += f" [{numbers[note]}]"
    cells, left_out = _fit(cells, table, width)
    if "status" not in cells:
        numbers = {}
    lines = []
    if table.left_out:
        lines.append(f"Not shown: {table.left_out:,} slower jobs, which are in table.md and on the page.")
    if left_out:
        lines.append(f"Not shown, for want of width: {', '.join(left_out)}")
    lines += remarks(table)
    lines += _note_lines(table, notes, numbers)
    grid = _grid(cells, left={*table.labels, *LEFT_ALIGNED})
    return printed(width, grid, *map(Text, lines))


def printed(width: int, *parts: RichTable | Text) -> str:
    """What rich prints on a terminal of `width` characters, as plain text."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, highlight=False).print(*parts, sep="\n")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _fit(cells: dict[str, list[str]], table: Table, width: int) -> tuple[dict[str, list[str]], list[str]]:
    """The columns that fit a width, and the headings of those left out."""
    cells = dict(cells)
    left_out = []
    for heading in LEFT_OUT_FIRST:
        if heading in cells and _width(cells) > width:
            del cells[heading]
            left_out.append(heading)
    if _width(cells) > width:
        one_label = {"job": [row.name for row in table.rows]}
        cells = one_label | {heading: column for heading, column in cells.items() if heading not in table.labels}
        if _width(cells) > width:  # the notes name those that did not end ok
            del cells["status"]
            left_out.append("status")
    return cells, left_out


def _width(cells: dict[str, list[str]]) -> int:
    """The least width of a table in characters, with two between the columns."""
    widths = []
    for heading, column in cells.items():
        if heading == "job":
            widths.append(JOB_WIDTH)
        else:
            widths.append(max(map(len, [*_heading_lines(heading), *column])))
    return sum(widths) + 2 * (len(widths) - 1)


def _heading_lines(heading: str) -> list[str]:
    return heading.replace(" ", "\n").replace(".", ".\n").split("\n")


def _grid(cells: dict[str, list[str]], left: set[str]) -> RichTable:
    """left: the headings of the columns that are aligned to the left."""
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for heading in cells:
        grid.add_column(
            Text("\n".join(_heading_lines(heading)).strip()),
            justify="left" if heading in left else "right",
            vertical="bottom",
            no_wrap=heading != "job",
            overflow="fold",
        )
    for texts in zip(*cells.values()):
        grid.add_row(*map(Text, texts))
    return grid


def _note_lines(table: Table, notes: list[str], numbers: dict[str, int]) -> list[str]:
    """Each note once: by its number in the status column, or else with the jobs that have it."""
    lines = []
    for note in dict.fromkeys(notes):
        if not note:
            continue
        if note in numbers:
            lines.append(f"[{numbers[note]}] {note}")
            continue
        rows = [row for row, row_note in zip(table.rows, notes) if row_note == note]
        names = "; ".join(row.name for row in rows)
        if len(rows) == len(table.rows):
            names = "all"
        lines.append(f"{rows[0].status} ({names}): {note}")
    return lines
