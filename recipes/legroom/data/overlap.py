"""Rows to evaluate on that are trained on, and labels that are not."""

import itertools
from collections.abc import Iterable, Iterator
from typing import cast

import datasets

from legroom.data.text_data import Warn

CONTENT = ("text", "pair", "question", "context", "messages", "tools")  # columns that make a row what it is
LONG_LINE = 40  # characters: shorter lines of plain text may well occur twice


def warn_of_overlap(train: datasets.Dataset, held_out: datasets.Dataset, by_line: bool, warn: Warn) -> None:
    """Warns of rows to evaluate on whose hash a row to train on has. by_line: of plain text, whose long lines are
    compared, or whole documents without one."""
    evaluated = list(_hashes(held_out, by_line))
    seen = set(evaluated)
    seen = {each for each in _hashes(train, by_line) if each in seen}
    found = [number for number, each in enumerate(evaluated) if each in seen]
    if found:
        named = not by_line and "place" in held_out.column_names
        first = f" (the first: {held_out[found[0]]['place']})" if named else ""
        what = f"documents or lines of {LONG_LINE} characters or more" if by_line else "rows"
        warn(f"{len(found):,} of {len(evaluated):,} {what} to evaluate on are also among those to train on{first}.")


def _hashes(part: datasets.Dataset, by_line: bool) -> Iterator[int]:
    for row in cast(Iterable[dict], part.select_columns([name for name in CONTENT if name in part.column_names])):
        if by_line:
            lines = [line for line in map(str.strip, row["text"].split("\n")) if len(line) >= LONG_LINE]
            yield from map(hash, lines or [row["text"]])
        else:
            yield hash(repr(row))


def move_new_labels(
    train: datasets.Dataset, held_out: datasets.Dataset, warn: Warn
) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """Both parts of a split, where rows with a label that only the evaluation has got are trained on instead."""
    if "label" not in train.column_names or isinstance(train[0]["label"], float):
        return train, held_out
    ours, theirs = (  # each row may have several
        [each if isinstance(each, list) else [each] for each in part["label"]] for part in (train, held_out)
    )
    new = set(itertools.chain(*theirs)) - set(itertools.chain(*ours))
    if not new:
        return train, held_out
    moved = [number for number, labels in enumerate(theirs) if new & set(labels)]
    kept = [number for number, labels in enumerate(theirs) if not new & set(labels)]
    warn(f"{len(moved):,} rows drawn for the evaluation are trained on instead: no other row has their label.")
    return datasets.concatenate_datasets([train, held_out.select(moved)]), held_out.select(kept) if kept else None
