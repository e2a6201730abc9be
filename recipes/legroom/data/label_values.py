"""Labels as files and data sets have them: numbers, several of a text, and the names of classes."""

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import datasets
from pyarrow import parquet

from legroom.errors import Refusal
from legroom.options import data_sources

Numbers = dict[int, int | None]  # a number of a class -> what stands for it
NO_LABEL: Numbers = {-1: None}  # what data sets of the hub have where a row has no class
BETWEEN = "|"  # labels that are written in one text, as in a .csv file
APART = re.compile(r"[^\s,;|'\[\]]+")  # the values of a list, or in a text
MARKS = {"0", "1", "0.", "1.", "0.0", "1.0", "false", "true"}  # whether a text has a label
LARGEST = 3.4e38  # of fp32, in which the loss compares numbers
GROUPED = re.compile(r"[-+]?\d[\d.]*([,_'\s]\d[\d.]*)+")  # 1,84 and 250,000 and 1_000, which Python's float takes


def number(value: Any, where: str, advice: str) -> float | None:
    """A label of data.task=regression; None where there is none.

    where, advice: beginning and end of the message. Raises Refusal for what is no number.
    """
    if isinstance(value, str) and GROUPED.fullmatch(value.strip()):
        raise Refusal(f"{where} {value!r:.40}. Write a number with a decimal point, and with digits alone: 1234.56.")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = str(value)
    try:
        label = float(value)
    except ValueError:
        raise Refusal(f"{where} {value!r:.40}, and data.task=regression needs a number. {advice}") from None
    except OverflowError:  # a whole number of 310 digits
        return None
    return label if abs(label) <= LARGEST else None  # NaN is none either


def several(value: Any, where: str, advice: str) -> list[int | str]:
    """The labels of data.task=multi_label: of a list, or of a text in which BETWEEN stands between them. The other
    arguments are those of `number`."""
    marks = APART.findall(str(value).casefold())
    if set(marks) <= MARKS and len(set(marks)) < len(marks):
        marked = [str(place) for place, mark in enumerate(marks) if mark.startswith(("1", "t"))]
        if isinstance(value, list):
            instead = f"[{', '.join(marked)}]"
        else:
            instead = BETWEEN.join(marked) or "an empty text"
        raise Refusal(
            f"{where} {value!r:.40}, which seems to have a 1 for each label of the text: write the numbers of those "
            f"labels, {instead}. {advice}"
        )
    labels = [word.strip() for word in value.split(BETWEEN)] if isinstance(value, str) else value
    if not isinstance(labels, list) or not all(type(label) in (int, str) for label in labels):
        raise Refusal(
            f"{where} {value!r:.40}, and data.task=multi_label needs a list of words or of numbers of classes, or a "
            f"text with {BETWEEN} between them. {advice}"
        )
    return [label for label in dict.fromkeys(labels) if label != ""]


def of_files(files: list[Path], column: str, source: str) -> tuple[datasets.ClassLabel | None, dict[Path, Numbers]]:
    """(the classes of .parquet files that `datasets` has written, file -> what stands for a number in it).

    Raises Refusal where a file without names of classes stands beside files that number theirs differently.
    """
    of_file: dict[Path, datasets.ClassLabel | None] = {}
    for file in files:
        of_file[file] = None
        if data_sources.kind(file) == ".parquet":
            with contextlib.suppress(OSError, ValueError):  # a damaged file is refused when its rows are read
                features = datasets.Features.from_arrow_schema(parquet.read_schema(file))
                of_file[file] = classes(features.get(column))
    different = {str(kind) for kind in of_file.values()}
    if None in of_file.values() and len(different) > 2:
        raise Refusal(f"{source}: the files number their classes differently, and one has no names of classes.")
    every = union(of_file.values())
    return every, {file: numbers(kind, every) for file, kind in of_file.items()}


def classes(kind: Any) -> datasets.ClassLabel | None:
    """The classes of a column, by its kind in `features`: of one label a row, or of several."""
    if isinstance(kind, list):
        kind = kind[0]
    elif hasattr(kind, "feature"):
        kind = kind.feature
    return kind if isinstance(kind, datasets.ClassLabel) else None


def union(kinds: Iterable[datasets.ClassLabel | None]) -> datasets.ClassLabel | None:
    """The classes of several files or parts: numbered as the first has them, and behind these what others have."""
    names: dict[str, None] = {}  # in order
    for kind in kinds:
        if kind is not None:
            names.update(dict.fromkeys(kind.names))
    return datasets.ClassLabel(names=list(names)) if names else None


def numbers(known: datasets.ClassLabel | None, every: datasets.ClassLabel | None) -> Numbers:
    """What stands for a number of a class: that of its name among `every`, and nothing for no label."""
    if known is None or every is None:
        return {}
    numbers_of_names = cast(list, every.str2int(known.names))
    return NO_LABEL | dict(enumerate(numbers_of_names))


def renumbered(label: Any, numbers: Numbers) -> Any:
    """A label, or a list of labels, with the numbers that stand for theirs."""
    if isinstance(label, list):
        labels = [renumbered(part, numbers) for part in label]
        return [part for part in labels if part is not None]
    return numbers.get(label, label)
