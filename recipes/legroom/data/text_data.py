"""Texts from files or from the hub.

Texts are a datasets.Dataset with the columns `text`, `pair` (the second text, if the data set has pairs) and, if it has
labels, `label`: numbers or words, or a datasets.ClassLabel; and `place`, for messages: "reviews.csv, line 3".
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pyarrow
from datasets.exceptions import DatasetGenerationError

from legroom.data import label_values, text_files
from legroom.data.bad_rows import BadRows
from legroom.data.text_files import Format, Rows
from legroom.errors import NotHere, Refusal, first_line
from legroom.options import data_sources

Warn = Callable[[str], None]
# What pandas and spreadsheets write for a value that is missing; as a text it is a text.
NO_VALUE = {"NA", "<NA>", "N/A", "n/a", "#N/A", "None", "null", "NULL"}  # and nan in any case


@dataclass(frozen=True)
class Wanted:
    """What is read of rows, and who hears about them.

    columns: name in the rows -> text, pair or label. advice(column): what to do if a column is missing or has no text.
    source: key and value of the option that names the rows. say: is given what is left out or assumed.
    task: of `options.task.OF_ROWS`, which the labels are for. bad: is given rows that cannot be used. is_one_text: the
    rows are the lines of one text, whose blank lines are part of it.
    """

    columns: dict[str, str]
    advice: Callable[[str], str]
    source: str
    say: Warn
    task: str = "classification"
    bad: BadRows = field(default_factory=BadRows)
    is_one_text: bool = False

    @property
    def label(self) -> str:
        """The column of the labels; "" without one."""
        for column, name in self.columns.items():
            if name == "label":
                return column
        return ""

    def value(self, value: Any, column: str, place: str) -> Any:
        """A value of a row as a text, or as a label (a number or a word, or of its task); None where there is none.

        Raises Refusal for a text that is no text, and a label that is no class.
        """
        is_label = column == self.label
        if is_label and _is_missing_label(value):
            return None
        is_text_or_class = not is_label or self.task == "classification"
        if is_text_or_class and isinstance(value, str) and value.isascii():  # nearly every value
            return value or None
        is_empty = value == "" or value != value  # NaN is not equal to itself
        if value is None or (is_text_or_class and is_empty):
            return None
        where = f"{self.source}: {place}: the column {column} holds"
        if not is_label:
            if not isinstance(value, str):
                raise Refusal(f"{where} {text_files.shown(value)}, not text. {self.advice(column)}")
            return encodable(value, where)
        if self.task == "regression":
            return label_values.number(value, where, self.advice(column))
        if self.task == "multi_label":
            labels = label_values.several(value, where, self.advice(column))
            return [encodable(label, where) if isinstance(label, str) else label for label in labels]
        return self._class(value, column, where)

    def _class(self, value: Any, column: str, where: str) -> int | str:
        """A label of a classification. where: begins a message about it."""
        if isinstance(value, (list, dict)):
            other_task = " Several labels a row: data.task=multi_label." if isinstance(value, list) else ""
            raise Refusal(
                f"{where} {text_files.shown(value)}, and a label is a number or a word. "
                f"{self.advice(column)}{other_task}"
            )
        if isinstance(value, float):
            if not value.is_integer():
                raise Refusal(
                    f"{where} {value}: a class is a whole number or a word. "
                    f"{self.advice(column)} To predict numbers: data.task=regression."
                )
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return encodable(str(value), where)


def read(files: list[Path], form: Format, wanted: Wanted) -> datasets.Dataset:
    """The texts of files, without rows that lack a value. Raises Refusal for files that cannot be read, or hold no
    text."""
    source = wanted.source
    kind = data_sources.kind(files[0])
    if kind == ".txt":
        data_sources.refuse_without_labels(files, wanted.columns, source.partition("=")[2])
        wanted = dataclasses.replace(wanted, columns={"text": "text"})
    classes, numbers = label_values.of_files(files, wanted.label, source)
    rows_in_file = dict.fromkeys(files, 0)
    has_cells = kind in text_files.DEFAULT_SEPARATOR  # whose values are all texts

    def rows() -> Rows:
        for path in files:
            for place, row in text_files.rows(path, list(wanted.columns), form, source, wanted.say):
                rows_in_file[path] += 1
                if wanted.label in row:
                    label = row[wanted.label]
                    if label is None and has_cells and wanted.task == "multi_label":
                        row[wanted.label] = ""  # an empty cell: the text has no label
                    elif numbers[path]:
                        row[wanted.label] = label_values.renumbered(label, numbers[path])
                yield f"{path.name}, {place}", row

    values = collect(rows(), wanted)
    _refuse_empty_files(rows_in_file, wanted)
    if has_cells:
        _read_numbers(values, wanted)
    return dataset(values, classes, wanted.say)


def _refuse_empty_files(rows_in_file: dict[Path, int], wanted: Wanted) -> None:
    """Raises Refusal if all files are empty, and says which are if some are."""
    empty = [path.name for path, count in rows_in_file.items() if count == 0]
    if not empty:
        return
    names = data_sources.listed(empty[:3])
    if len(empty) > 3:
        names += " and others"
    if len(empty) == len(rows_in_file):
        wanted.bad.check_all(wanted.source)
        raise Refusal(f"{wanted.source}: {names} is empty: there is nothing to read.")
    wanted.say(f"{names} is empty.")


def _read_numbers(values: dict[str, list], wanted: Wanted) -> None:
    """Turns the labels of cells into numbers, in place, if all of them are.

    Raises Refusal for a column of texts that has numbers alone.
    """
    for column, name in wanted.columns.items():
        if name != "label" and all(_is_number(text) for text in values[name]):
            raise Refusal(f"{wanted.source}: the column {column} holds numbers, not text. {wanted.advice(column)}")
    if wanted.task != "classification" or "label" not in values:
        return
    labels = values["label"]
    if not all(_is_number(label) for label in labels):
        return
    for index, label in enumerate(labels):
        number = _whole(label)
        if number is None:  # a fraction is refused
            number = wanted.value(float(label), wanted.label, values["place"][index])
        labels[index] = number


def collect(rows: Rows, wanted: Wanted) -> dict[str, list]:
    """text, pair, label and place -> the values of the rows that lack none.

    rows: (the place, column -> value). A text of blanks alone is none. Raises Refusal for a column that is not there,
    and if no row is left.
    """
    columns = wanted.columns
    values: dict[str, list] = {name: [] for name in columns.values()}
    if wanted.label:
        values["place"] = []
    left_out: dict[str, list[str]] = {}  # what rows lack -> their places
    unread = text_files.Unread()
    columns_seen: dict[str, None] = {}
    total = 0
    for place, row in rows:
        total += 1
        wanted.bad.rows += 1
        unread.add(row, columns)
        if len(columns_seen) < 100:  # enough for a message about a column that is not there
            columns_seen.update(dict.fromkeys(row))
        try:
            row_values = {name: wanted.value(row.get(column), column, place) for column, name in columns.items()}
        except Refusal as refusal:
            wanted.bad.add(place, str(refusal))
            continue
        lacking = _lacking(row_values, row, wanted)
        if lacking is not None:
            left_out.setdefault(lacking, []).append(place)
            continue
        if wanted.label:
            row_values["place"] = place
        for name, value in row_values.items():
            values[name].append(value)
    if total:
        _refuse_missing_columns(columns_seen, wanted)
        if not values["text"] and not left_out:
            wanted.bad.check_all(wanted.source)
    if left_out:
        kinds = data_sources.listed(f"{len(places):,} without a {name}" for name, places in left_out.items())
        count = sum(len(places) for places in left_out.values())
        first = next(iter(left_out.values()))[0]
        summary = f"{count:,} of {total:,} rows are left out: {kinds} (the first: {first})"
        if not values["text"]:
            raise Refusal(f"{wanted.source} has no text to use: {summary}.")
        wanted.say(f"{summary}.")
    if unread:
        wanted.say(f"only {data_sources.listed(columns)} is read of a row, and not {unread}.")
    return values


def _lacking(row_values: dict[str, Any], row: dict[str, Any], wanted: Wanted) -> str | None:
    """What a row lacks: text, pair or label, with what is written there ('label (NA)'). None if it lacks nothing."""
    for name, value in row_values.items():
        if value is not None and (wanted.is_one_text or not _is_blank(value)):
            continue
        written = row.get(wanted.label)
        if name == "label" and isinstance(written, str) and not _is_blank(written):
            return f"label ({written})"
        return name
    return None


def _refuse_missing_columns(columns_seen: Collection[str], wanted: Wanted) -> None:
    """Raises Refusal for a column that no row has."""
    for column, name in wanted.columns.items():
        if column not in columns_seen:
            advice = wanted.advice(column)
            if name == "label":
                advice += (
                    " Of texts without labels: data.task=masked_lm (an encoder) or language_modelling (a decoder)."
                )
            raise Refusal(f"{wanted.source} has no column {column}: it has {', '.join(columns_seen)}. {advice}")


def dataset(
    values: dict[str, list], classes: datasets.ClassLabel | None = None, warn: Warn = lambda _: None
) -> datasets.Dataset:
    """The values of `collect` as a data set. Labels are words, unless all are numbers. classes: the names of the
    numbers, if they are known. warn: is given what is odd about the labels."""
    features: dict[str, Any] = {name: datasets.Value("large_string") for name in values}  # a text of over 2 GiB
    if "label" in values:
        labels = values["label"]
        if labels and isinstance(labels[0], (list, float)):
            return _of_sets_or_numbers(values, features, classes)
        _warn_of_mixed(labels, values["place"], warn)
        if all(type(label) is int and abs(label) < 2**63 for label in labels):
            features["label"] = classes or datasets.Value("int64")
        else:
            values["label"] = [str(label) for label in labels]
    return datasets.Dataset(pyarrow.Table.from_pydict(values, datasets.Features(features).arrow_schema))


def _of_sets_or_numbers(
    values: dict[str, list], features: dict[str, Any], classes: datasets.ClassLabel | None
) -> datasets.Dataset:
    """`dataset` of labels that are lists, or numbers. Those of lists are words, unless all are numbers."""
    labels = values["label"]
    if isinstance(labels[0], float):
        features["label"] = datasets.Value("float64")
    elif all(type(label) is int for label in itertools.chain(*labels)):
        features["label"] = [classes or datasets.Value("int64")]
    else:
        features["label"] = [datasets.Value("large_string")]
        values["label"] = [list(map(str, of_row)) for of_row in labels]
    return datasets.Dataset.from_dict(values, datasets.Features(features))


def _warn_of_mixed(labels: list[Any], places: list[str], warn: Warn) -> None:
    """Labels of which some are numbers and some are words."""
    first: dict[str, Any] = {}  # label of each kind
    for label in dict.fromkeys(labels):
        is_number = type(label) is int or _whole(label) is not None
        first.setdefault("number" if is_number else "word", label)
    if len(first) < 2:
        return
    number, word = [f"{first[kind]!s:.40}, {places[labels.index(first[kind])]}" for kind in ("number", "word")]
    warn(f"some labels are numbers ({number}), others words ({word}): all are taken as words.")


def _is_missing_label(value: Any) -> bool:
    """Whether a text stands for a label that is missing."""
    if not isinstance(value, str):
        return False
    text = value.strip()
    return text in NO_VALUE or text.lstrip("+-").casefold() == "nan"


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python takes 1_000 for 1000


def _whole(text: str) -> int | None:
    """The whole number that a text is, also one written as `1.0`; None for any other text."""
    if not _is_number(text):
        return None
    try:
        return int(text)
    except ValueError:
        number = float(text)
    return int(number) if number.is_integer() else None


def encodable(text: str, where: str) -> str:
    """The text; raises Refusal, which begins with `where`, if it cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refusal(f"{where} half of a surrogate pair (\\u{ord(text[error.start]):x}), not text.") from error
    return text


# --- the hub -----------------------------------------------------------------------------------


def published(name: str, path: str | None, form: Format, warn: Warn) -> list[datasets.Dataset]:
    """The texts of each of SPLITS of a data set, from the hub, or from files with the same columns if `path` is given.

    Raises Refusal if they cannot be read.
    """
    known = data_sources.PUBLISHED[name]
    if path is not None:
        source = f"data.path={path}"
        is_one_text = "label" not in known.columns.values()

        def say(text: str) -> None:
            if not is_one_text:  # an empty line of one long text takes nothing away
                warn(f"{source}: {text}")

        advice = data_sources.expected_files(name)
        wanted = Wanted(known.columns, lambda _: advice, source, say, is_one_text=is_one_text)
        parts = [read(files, form, wanted) for files in data_sources.splits(name, path)]
        wanted.bad.check()
        return parts
    try:  # datasets 4 and later cannot run code of a repository
        parts = datasets.load_dataset(known.repository, known.config, split=list(data_sources.SPLITS))
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise NotHere(
            f"data={name} comes from the hub ({known.repository}), which did not return it: "
            f"{first_line(error)}. Without a network, give files with data.path=: "
            f"{data_sources.expected_files(name)}"
        ) from error
    return [_clean(part, known.columns) for part in parts]


def _clean(rows: Any, columns: dict[str, str]) -> datasets.Dataset:
    """The columns of `columns`, renamed, without rows that lack a value."""
    rows = rows.select_columns(list(columns)).rename_columns(columns)

    def is_whole(row: dict[str, Any]) -> bool:
        for name, value in row.items():
            if name == "label":
                if value is None or value in label_values.NO_LABEL:
                    return False
            elif not value:
                return False
        return True

    return rows.filter(is_whole)
