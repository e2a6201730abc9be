"""Checks of the evaluation split: rows of it that are trained on, and labels of it that are not."""

from collections.abc import Iterable, Iterator
from typing import cast

import datasets

from legroom.data.text_data import Warn

CONTENT = ("text", "pair", "question", "context", "messages", "tools")  # columns that make a row what it is
LONG_LINE = 40  # characters: shorter lines of plain text may well occur twice


def warn_of_overlap(train: datasets.Dataset, held_out: datasets.Dataset, by_line: bool, warn: Warn) -> None:
    """Warns of rows to evaluate on whose hash a row to train on has. by_line: of plain text, whose long lines are
    compared, or whole documents without one."""
    hashes = list(_hashes(held_out, by_line))
    in_training = set(hashes).intersection(_hashes(train, by_line))
    shared = [index for index, value in enumerate(hashes) if value in in_training]
    if not shared:
        return
    first = ""
    if by_line:
        what = f"documents or lines of {LONG_LINE} characters or more"
    else:
        what = "rows"
        if "place" in held_out.column_names:
            first = f" (the first: {held_out[shared[0]]['place']})"
    warn(f"{len(shared):,} of {len(hashes):,} {what} to evaluate on are also among those to train on{first}.")


def _hashes(part: datasets.Dataset, by_line: bool) -> Iterator[int]:
    """The hashes of the rows, or of their long lines (by_line)."""
    columns = [name for name in CONTENT if name in part.column_names]
    for row in cast(Iterable[dict], part.select_columns(columns)):
        if not by_line:
            yield hash(repr(row))
            continue
        lines = [line.strip() for line in row["text"].split("\n")]
        long_lines = [line for line in lines if len(line) >= LONG_LINE]
        for line in long_lines or [row["text"]]:
            yield hash(line)


def move_new_labels(
    train: datasets.Dataset, held_out: datasets.Dataset, warn: Warn
) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """Both parts of a split, where rows with a label that only the evaluation has got are trained on instead."""
    if "label" not in train.column_names or isinstance(train[0]["label"], float):
        return train, held_out
    evaluated = _label_sets(held_out)
    new = set().union(*evaluated) - set().union(*_label_sets(train))
    if not new:
        return train, held_out
    moved = [index for index, labels in enumerate(evaluated) if labels & new]
    kept = [index for index, labels in enumerate(evaluated) if not labels & new]
    warn(f"{len(moved):,} rows drawn for the evaluation are trained on instead: no other row has their label.")
    train = datasets.concatenate_datasets([train, held_out.select(moved)])
    return train, held_out.select(kept) if kept else None


def _label_sets(part: datasets.Dataset) -> list[set]:
    """The labels of each row, which may have several."""
    return [set(label) if isinstance(label, list) else {label} for label in part["label"]]
