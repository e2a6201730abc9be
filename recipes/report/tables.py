"""The table for people: its cells and remarks as words, as Markdown and for the terminal."""

from __future__ import annotations

import io
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from recipes.records import record
from recipes.report.labels import PACKAGES
from recipes.report.rows import COLUMNS_AT_MOST, Row, Spread, Table

# Stated once above the table when all jobs have the same.
CONTEXT = (
    "experiment",
    "recipe",
    "model",
    "data",
    "data.seq_len",
    "batch.per_device",
    "accumulation.steps",
    "precision",
    "optim",
    "checkpointing",
    "parallelism",
    "device_name",
    *PACKAGES,
    "git_revision",
)
OWN = ("model", "data.seq_len", "device_name")  # in which published figures may be of something else


def number(value: float, digits: int = 4) -> str:
    """A number with so many digits that count, without an exponent: 14949, 9.313, 0.0783."""
    if not value:
        return "0"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def percent(value: float, base: float, decimals: int = 1) -> str:
    """The difference from a base: '+12.3 %'; none at all has no sign."""
    change = round((value / base - 1) * 100, decimals)
    return f"{change:+.{decimals}f} %" if change else f"{0:.{decimals}f} %"


def spread_text(spread: Spread | None, unit: float = 1) -> str:
    """The median, and where the repeats differ the least and the most, in a unit."""
    if spread is None:
        return ""
    median, low, high = (number(value / unit) for value in spread)
    return median if low == high else f"{median} ({low} to {high})"


def difference(made: Table, row: Row, figure: Callable[[Row], Spread | None]) -> str:
    """How far a row's figure is from the baseline's, in per cent; empty where either is missing."""
    mine, base = figure(row), figure(made.baseline) if made.baseline else None
    if row is made.baseline and mine:
        return "baseline"
    return percent(mine.median, base.median) if mine and base and base.median else ""


def columns(made: Table) -> dict[str, list[str]]:
    """The table as people read it: heading -> a text for each row. Empty columns are left out, units are in the headings."""
    unit, size = made.unit
    rows = made.rows

    def each(cell):
        return [cell(row) for row in rows]

    def evaluation(row):
        said = {"loss": number, "accuracy": lambda value: f"{value:.1%}", "perplexity": number}
        found = [(key, row.spread("evaluation", key)) for key in said]
        return ", ".join(f"{key} {said[key](spread.median)}" for key, spread in found if spread)

    def theirs(key, size=1):
        return each(lambda row: number(row.published[key] / size) if row.published.get(key) else "")

    text = made.labels | {
        "runs": each(lambda row: str(len(row.runs))) if any(len(row.runs) > 1 for row in rows) else [],
        "status": each(lambda row: row.status),
        f"{made.memory_name} {unit}": each(lambda row: spread_text(made.memory(row), size)),
        "memory diff.": each(lambda row: difference(made, row, made.memory)),
        f"published device memory {unit}": theirs("device_used_bytes", size),
        "samples/s": each(lambda row: spread_text(made.speed(row))),
        "samples/s diff.": each(lambda row: difference(made, row, made.speed)),
        "published samples/s": theirs("samples_per_second"),
        "step ms": each(lambda row: spread_text(row.spread("speed", "step_seconds_median"), 1e-3)),
        "time s": each(lambda row: spread_text(row.spread("speed", "train_seconds"))),
        "final loss": each(lambda row: spread_text(row.spread("training", "final_loss"))),
        "evaluation": each(evaluation),
        "note": each(lambda row: " ".join(row.notes)),
    }
    return {heading: cells for heading, cells in text.items() if any(cells)}


def remarks(made: Table) -> list[str]:
    """What a reader needs beside the table: what all jobs share, what memory means, the baseline, sources."""
    same = []
    for key in CONTEXT:
        values = list(dict.fromkeys(row.facts.get(key, "null") for row in made.rows))
        if key in PACKAGES or key == "git_revision" or len(values) == 1:
            values = [value for value in values if value != "null"]
            same += [f"{key}={' or '.join(values)}"] if values and key not in made.keys else []
    runs = sum(len(row.runs) for row in made.rows)
    ends = [run.status for row in made.rows for run in row.runs]
    counts = ", ".join(f"{ends.count(status)} {status}" for status in record.STATUSES if status in ends)
    lines = [f"{runs} job{'s' * (runs > 1)}: {counts}."] + [f"The same in all: {', '.join(same)}."] * bool(same)
    if len(made.keys) > COLUMNS_AT_MOST:
        common = " ".join(f"{key}={value}" for key, value in made.common.items() if value not in ("", "null"))
        lines.append(f"A job is named by what sets it apart from the most common: {common}.")
    if any(map(made.memory, made.rows)):
        lines.append(f"{made.memory_name.capitalize()} is {made.memory_meaning}.")
    if any(len(row.runs) > 1 for row in made.rows):
        lines.append("Repeats of a job are one row: the median (the least to the most).")
    if made.baseline and len(made.rows) > 1:
        lines.append(f"Differences are from the baseline, {made.baseline.name}.")
    for source in dict.fromkeys(str(row.published["source"]) for row in made.rows if row.published.get("source")):
        here = [row.facts for row in made.rows if row.published.get("source") == source]
        own = [f"{key}={' or '.join(dict.fromkeys(words.get(key, 'null') for words in here))}" for key in OWN]
        lines.append(f"Published: {source}; the jobs here: {', '.join(own)}.")
    return lines


def shared(notes: list[str]) -> dict[str, int]:
    """The notes that several rows have, numbered from 1, so that they need to be read once only."""
    return {note: number for number, note in enumerate(dict.fromkeys(n for n in notes if n and notes.count(n) > 1), 1)}


def markdown(made: Table, pictures: list[str] = ()) -> str:
    """The table, its remarks and links to the pictures, as Markdown that reads well as plain text too."""
    words = {
        heading: [" ".join(cell.replace("|", "\\|").split()) for cell in cells]
        for heading, cells in columns(made).items()
    }
    numbers = shared(words.get("note", []))
    if numbers:
        words["note"] = [f"see {numbers[note]}" if note in numbers else note for note in words["note"]]
    left = {*made.labels, "status", "evaluation", "note"}
    width = {heading: 0 if heading == "note" else max(map(len, [heading, *cells])) for heading, cells in words.items()}

    def line(texts):
        return (
            "| "
            + " | ".join(text.ljust(width[h]) if h in left else text.rjust(width[h]) for h, text in zip(words, texts))
            + " |"
        )

    rule = (
        "|"
        + "|".join("-" * (max(width[h], 3) + (2 if h in left else 1)) + ("" if h in left else ":") for h in words)
        + "|"
    )
    rows = [line(texts) for texts in zip(*words.values())]
    return (
        "\n\n".join(
            [
                "\n".join(f"- {remark}" for remark in remarks(made)),
                "\n".join([line(words), rule, *rows]),
                *["\n".join(f"{number}. {note}" for note, number in numbers.items())] * bool(numbers),
                *(f"![{Path(name).stem}]({name})" for name in pictures),
            ]
        )
        + "\n"
    )


def screen_text(made: Table, width: int | None = None) -> str:
    """The table for a terminal of so many characters (None: the one at hand; 160 where there is none).

    In a narrow one the less important columns give way, then the label's columns become one.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    if width is None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 160
    words = columns(made)
    notes = words.pop("note", [])
    numbers = {} if len(set(notes)) == 1 else shared(notes)
    words["status"] = [
        cell + (f" [{numbers[note]}]" if note in numbers else "")
        for cell, note in zip(words["status"], notes or [""] * len(made.rows))
    ]
    left_out: list[str] = []
    folded = 18  # characters that the label needs at least, once its columns are one

    def lines_of(heading):
        return heading.replace(" ", "\n").replace(".", ".\n").split("\n")

    def fits():
        widths = [
            folded if heading == "job" else max(map(len, [*lines_of(heading), *cells]))
            for heading, cells in words.items()
        ]
        return sum(widths) + 2 * len(widths) - 2 <= width

    def drop(headings):
        for heading in headings:
            if not fits() and words.pop(heading, None):
                left_out.append(heading)

    drop(("time s", "evaluation", "step ms", "final loss", "runs", "samples/s diff.", "memory diff."))
    if not fits():
        words = {"job": [row.name for row in made.rows]} | {
            h: cells for h, cells in words.items() if h not in made.labels
        }
        drop(("status",))  # the notes below say it of those that are not ok
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for heading in words:
        left = heading in {*made.labels, "job", "status", "evaluation"}
        grid.add_column(
            Text("\n".join(lines_of(heading)).strip()),
            justify="left" if left else "right",
            vertical="bottom",
            no_wrap=heading != "job",
            overflow="fold",
        )
    for cells in zip(*words.values()):
        grid.add_row(*map(Text, cells))
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(grid)
    if left_out:
        console.print(Text(f"Not shown, for want of width: {', '.join(left_out)}"))
    for line in remarks(made):
        console.print(Text(line))
    for note in dict.fromkeys(filter(None, notes)):
        if note in numbers and "status" in words:
            console.print(Text(f"[{numbers[note]}] {note}"))
            continue
        having = [row for row, its in zip(made.rows, notes) if its == note]
        names = "all" if len(having) == len(made.rows) else "; ".join(row.name for row in having)
        console.print(Text(f"{having[0].status} ({names}): {note}"))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
