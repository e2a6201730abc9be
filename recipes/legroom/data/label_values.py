"""A label as a file or a data set has it: several of a text, or a number."""

import contextlib
import re
from pathlib import Path
from typing import Any

import datasets
from pyarrow import parquet

from legroom.errors import Refusal

NO_LABEL: dict[int, str | None] = {-1: None}  # what data sets of the hub have where a row has no class; see `renamed`
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


def file_classes(file: Path, column: str) -> datasets.ClassLabel | None:
    """The classes of a .parquet file that `datasets` has written."""
    with contextlib.suppress(OSError, ValueError):  # of another kind, or damaged, which its rows say
        return classes(datasets.Features.from_arrow_schema(parquet.read_schema(file)).get(column))
    return None


def classes(kind: Any) -> datasets.ClassLabel | None:
    """The classes of a column, by its kind in `features`: of one label a row, or of several."""
    kind = kind[0] if isinstance(kind, list) else getattr(kind, "feature", kind)
    return kind if isinstance(kind, datasets.ClassLabel) else None


def names(known: datasets.ClassLabel | None, by_name: bool) -> dict[int, str | None]:
    """What stands for a number of a class, where it is not the number itself. by_name: the class's name."""
    return (NO_LABEL | (dict(enumerate(known.names)) if by_name else {})) if known else {}


def renamed(label: Any, names: dict[int, str | None]) -> Any:
    """A label, or several, with `names` in the place of their numbers."""
    return [renamed(each, names) for each in label] if isinstance(label, list) else names.get(label, label)
