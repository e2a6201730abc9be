"""A label as a file or a data set has it: several of a text, or a number."""

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
    """A label of data.task=regression; None where there is none. where, advice: begin and end of the Refusal."""
    if isinstance(value, str) and GROUPED.fullmatch(value.strip()):
        raise Refusal(f"{where} {value!r:.40}. Write a number with a decimal point, and with digits alone: 1234.56.")
    try:
        found = float(value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value))
    except ValueError:
        raise Refusal(f"{where} {value!r:.40}, and data.task=regression needs a number. {advice}") from None
    except OverflowError:  # a whole number of 310 digits
        return None
    return found if abs(found) <= LARGEST else None


def several(value: Any, where: str, advice: str) -> list[int | str]:
    """The labels of data.task=multi_label: of a list, or of a text in which BETWEEN stands between them. The other
    arguments are those of `number`."""
    marks = APART.findall(str(value).casefold())
    if len(set(marks)) < len(marks) and set(marks) <= MARKS:
        places = [str(place) for place, each in enumerate(marks) if each[0] in "1t"]
        typed = f"[{', '.join(places)}]" if isinstance(value, list) else BETWEEN.join(places) or "an empty text"
        raise Refusal(
            f"{where} {value!r:.40}, which seems to have a 1 for each label of the text: write the numbers of those "
            f"labels, {typed}. {advice}"
        )
    found = [word.strip() for word in value.split(BETWEEN)] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(type(each) in (int, str) for each in found):
        raise Refusal(
            f"{where} {value!r:.40}, and data.task=multi_label needs a list of words or of numbers of classes, or a "
            f"text with {BETWEEN} between them. {advice}"
        )
    return [each for each in dict.fromkeys(found) if each != ""]


def of_files(files: list[Path], column: str, source: str) -> tuple[datasets.ClassLabel | None, dict[Path, Numbers]]:
    """(the classes of .parquet files that `datasets` has written, file -> what stands for a number in it)."""
    found: dict[Path, datasets.ClassLabel | None] = dict.fromkeys(files)
    for file in (file for file in files if data_sources.kind(file) == ".parquet"):
        with contextlib.suppress(OSError, ValueError):  # damaged, which its rows say
            found[file] = classes(datasets.Features.from_arrow_schema(parquet.read_schema(file)).get(column))
    every, kinds = union(found.values()), {str(kind) for kind in found.values()}
    if None in found.values() and len(kinds) > 2:
        raise Refusal(f"{source}: the files number their classes differently, and one has no names of classes.")
    return every, {file: numbers(kind, every) for file, kind in found.items()}


def classes(kind: Any) -> datasets.ClassLabel | None:
    """The classes of a column, by its kind in `features`: of one label a row, or of several."""
    kind = kind[0] if isinstance(kind, list) else getattr(kind, "feature", kind)
    return kind if isinstance(kind, datasets.ClassLabel) else None


def union(kinds: Iterable[datasets.ClassLabel | None]) -> datasets.ClassLabel | None:
    """The classes of several files or parts: numbered as the first has them, and behind these what others have."""
    names = dict.fromkeys(name for kind in kinds if kind for name in kind.names)
    return datasets.ClassLabel(names=[*names]) if names else None


def numbers(known: datasets.ClassLabel | None, every: datasets.ClassLabel | None) -> Numbers:
    """What stands for a number of a class: that of its name among `every`, and nothing for no label."""
    return NO_LABEL | dict(enumerate(cast(list, every.str2int(known.names)))) if known and every else {}


def renumbered(label: Any, numbers: Numbers) -> Any:
    """A label, or several, with `numbers` in the place of their own."""
    if isinstance(label, list):
        return [found for each in label if (found := renumbered(each, numbers)) is not None]
    return numbers.get(label, label)
