"""The table for a terminal, with `rich`."""

import io
import shutil
import sys

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from legroom.report.rows import Table
from legroom.report.tables import LISTS, columns, fastest, number_notes, remarks

NO_TERMINAL_WIDTH = 160  # characters, where stdout is not a terminal
MOST_ROWS = 200  # that a terminal is shown
JOB_WIDTH = 18  # the least width of the label once its columns are one


def screen_text(made: Table, width: int | None = None) -> str:
    """Table, remarks and notes for a terminal of `width` characters (None: the width of this one).

    Where the table is too wide, it loses columns, then the columns of the label become one.
    """
    if width is None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else NO_TERMINAL_WIDTH
    made = fastest(made, MOST_ROWS)
    cells = columns(made)
    notes = cells.pop("note", [""] * len(made.rows))
    numbers = {} if len(set(notes)) == 1 else number_notes(notes)
    cells["status"] = [
        f"{status} [{numbers[note]}]" if note in numbers else status for status, note in zip(cells["status"], notes)
    ]
    cells, left_out = _fit(cells, made, width)
    lines = []
    if made.left_out:
        lines.append(f"Not shown: {made.left_out:,} slower jobs, which are in table.md and on the page.")
    if left_out:
        lines.append(f"Not shown, for want of width: {', '.join(left_out)}")
    lines += [*remarks(made), *_note_lines(made, notes, numbers if "status" in cells else {})]
    grid = _grid(cells, left={*made.labels, "job", "status", "bound by", "evaluation"})
    return printed(width, grid, *map(Text, lines))


def printed(width: int, *parts: RichTable | Text) -> str:
    """What rich prints on a terminal of `width` characters, as plain text."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, highlight=False).print(*parts, sep="\n")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _fit(cells: dict[str, list[str]], made: Table, width: int) -> tuple[dict[str, list[str]], list[str]]:
    """The columns that fit a width, and the headings of those left out."""
    cells, left_out = dict(cells), []

    def drop(headings: tuple[str, ...]) -> None:
        for heading in headings:
            if not _fits(cells, width) and cells.pop(heading, None):
                left_out.append(heading)

    drop(LISTS["columns_for_width"])
    if not _fits(cells, width):
        others = {heading: column for heading, column in cells.items() if heading not in made.labels}
        cells = {"job": [row.name for row in made.rows]} | others
        drop(("status",))  # the notes name those that did not end ok
    return cells, left_out


def _fits(cells: dict[str, list[str]], width: int) -> bool:
    widths = [
        JOB_WIDTH if heading == "job" else max(map(len, [*_heading_lines(heading), *column]))
        for heading, column in cells.items()
    ]
    return sum(widths) + 2 * len(widths) - 2 <= width


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


def _note_lines(made: Table, notes: list[str], numbers: dict[str, int]) -> list[str]:
    """Each note once: by its number in the status column, or else with the jobs that have it."""
    lines = []
    for note in dict.fromkeys(filter(None, notes)):
        if note in numbers:
            lines.append(f"[{numbers[note]}] {note}")
            continue
        rows = [row for row, own in zip(made.rows, notes) if own == note]
        names = "all" if len(rows) == len(made.rows) else "; ".join(row.name for row in rows)
        lines.append(f"{rows[0].status} ({names}): {note}")
    return lines
