"""Texts from files or from the hub.

Texts are a datasets.Dataset with the columns `text`, `pair` (the second text, if the data set has pairs) and, if it has
labels, `label`: numbers or words, or a datasets.ClassLabel; and `place`, for messages: "reviews.csv, line 3".
"""

import dataclasses
from collections.abc import Callable
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
        return next((column for column, name in self.columns.items() if name == "label"), "")

    def value(self, value: Any, column: str, place: str) -> Any:
        """A value of a row as a text, or as a label (a number or a word, or of its task); None where there is none.

        Raises Refusal for a text that is no text, and a label that is no class.
        """
        is_label = column == self.label
        if is_label and _is_none(value):
            return None
        plain = not is_label or self.task == "classification"
        if plain and isinstance(value, str) and value.isascii():  # nearly every value
            return value or None
        if value is None or (plain and (value == "" or value != value)):
            return None
        where = f"{self.source}: {place}: the column {column} holds"
        if not plain:
            if self.task == "regression":
                return label_values.number(value, where, self.advice(column))
            several = label_values.several(value, where, self.advice(column))
            return [encodable(each, where) if isinstance(each, str) else each for each in several]
        if not is_label:
            if not isinstance(value, str):
                raise Refusal(f"{where} {text_files.shown(value)}, not text. {self.advice(column)}")
            return encodable(value, where)
        if isinstance(value, (list, dict)):
            other = " Several labels a row: data.task=multi_label." if isinstance(value, list) else ""
            raise Refusal(
                f"{where} {text_files.shown(value)}, and a label is a number or a word. {self.advice(column)}{other}"
            )
        if isinstance(value, float):
            if not value.is_integer():
                raise Refusal(
                    f"{where} {value}: a class is a whole number or a word. "
                    f"{self.advice(column)} To predict numbers: data.task=regression."
                )
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else encodable(str(value), where)


def read(files: list[Path], form: Format, wanted: Wanted) -> datasets.Dataset:
    """The texts of files, without rows that lack a value. Raises Refusal for files that cannot be read, or hold no
    text."""
    source, kind = wanted.source, data_sources.kind(files[0])
    if kind == ".txt":
        data_sources.refuse_without_labels(files, wanted.columns, source.partition("=")[2])
        wanted = dataclasses.replace(wanted, columns={"text": "text"})
    classes, numbers = label_values.of_files(files, wanted.label, source)
    counts = dict.fromkeys(files, 0)
    separated = kind in text_files.DEFAULT_SEPARATOR
    of_cells = separated and wanted.task == "multi_label"

    def rows() -> Rows:
        for path in files:
            for place, row in text_files.rows(path, list(wanted.columns), form, source, wanted.say):
                counts[path] += 1
                none = of_cells and row.get(wanted.label, "") is None  # an empty cell: the text has no label
                if numbers[path] and wanted.label in row:
                    row[wanted.label] = label_values.renumbered(row[wanted.label], numbers[path])
                yield f"{path.name}, {place}", row | {wanted.label: ""} if none else row

    values = collect(rows(), wanted)
    empty = [path.name for path in files if not counts[path]]
    if empty:
        said = f"{data_sources.listed(empty[:3])}{' and others' * (len(empty) > 3)} is empty"
        if not any(counts.values()):
            wanted.bad.check_all(source)
            raise Refusal(f"{source}: {said}: there is nothing to read.")
        wanted.say(f"{said}.")
    if separated:
        for column, name in wanted.columns.items():
            if name != "label" and all(map(_is_number, values[name])):
                raise Refusal(f"{source}: the column {column} holds numbers, not text. {wanted.advice(column)}")
        if "label" in values and wanted.task == "classification" and all(map(_is_number, values["label"])):
            for index, (label, place) in enumerate(zip(values["label"], values["place"])):
                number = _whole(label)
                if number is None:  # refused, as a fraction in a .jsonl file
                    number = wanted.value(float(label), wanted.label, place)
                values["label"][index] = number
    return dataset(values, classes, wanted.say)


def collect(rows: Rows, wanted: Wanted) -> dict[str, list]:
    """text, pair, label and place -> the values of the rows that lack none.

    rows: (the place, column -> value). A text of blanks alone is none. Raises Refusal for a column that is not there,
    and if no row is left.
    """
    columns, source, labelled = wanted.columns, wanted.source, bool(wanted.label)
    values: dict[str, list] = {name: [] for name in (*columns.values(), *["place"] * labelled)}
    dropped: dict[str, list[str]] = {}  # what rows lack -> their places
    unread, names, total = text_files.Unread(), {}, 0
    for place, row in rows:
        total += 1
        wanted.bad.rows += 1
        unread.add(row, columns)
        if len(names) < 100:  # enough for a message about a column that is not there
            names |= dict.fromkeys(row)
        try:
            found = {name: wanted.value(row.get(column), column, place) for column, name in columns.items()}
        except Refusal as refusal:
            wanted.bad.add(place, str(refusal))
            continue
        if not wanted.is_one_text:
            found = {name: None if _is_blank(value) else value for name, value in found.items()}
        if labelled:
            found["place"] = place
        lacking = [name for name, value in found.items() if value is None]
        if lacking:
            written = row.get(wanted.label)
            is_written = lacking[0] == "label" and isinstance(written, str) and not _is_blank(written)
            dropped.setdefault(f"label ({written})" if is_written else lacking[0], []).append(place)
            continue
        for name, value in found.items():
            values[name].append(value)
    missing = [column for column in columns if column not in names]
    if missing and total:
        other = " Of texts without labels: data.task=masked_lm (an encoder) or language_modelling (a decoder)."
        advice = wanted.advice(missing[0]) + other * (wanted.columns[missing[0]] == "label")
        raise Refusal(f"{source} has no column {missing[0]}: it has {', '.join(names)}. {advice}")
    if total and not values["text"] and not dropped:
        wanted.bad.check_all(source)
    if dropped:
        listed = data_sources.listed(f"{len(places):,} without a {lacks}" for lacks, places in dropped.items())
        count, first = sum(map(len, dropped.values())), next(iter(dropped.values()))[0]
        said = f"{count:,} of {total:,} rows are left out: {listed} (the first: {first})"
        if not values["text"]:
            raise Refusal(f"{source} has no text to use: {said}.")
        wanted.say(f"{said}.")
    if unread:
        wanted.say(f"only {data_sources.listed(columns)} is read of a row, and not {unread}.")
    return values


def dataset(
    values: dict[str, list], classes: datasets.ClassLabel | None = None, warn: Warn = lambda _: None
) -> datasets.Dataset:
    """What `collect` has found as a data set. Labels are words, unless all are numbers. classes: the names of the
    numbers, if they are known. warn: is given what is odd about the labels."""
    features: dict[str, Any] = {name: datasets.Value("large_string") for name in values}  # a text of over 2 GiB
    if "label" in values:
        labels = values["label"]
        if labels and isinstance(labels[0], (list, float)):
            return _of_sets_or_numbers(values, features, classes)
        _warn_of_mixed(labels, values["place"], warn)
        numbers = all(type(label) is int and abs(label) < 2**63 for label in labels)
        values["label"] = labels if numbers else [str(label) for label in labels]
        if numbers:
            features["label"] = classes or datasets.Value("int64")
    return datasets.Dataset(pyarrow.Table.from_pydict(values, datasets.Features(features).arrow_schema))


def _of_sets_or_numbers(
    values: dict[str, list], features: dict[str, Any], classes: datasets.ClassLabel | None
) -> datasets.Dataset:
    """`dataset` of labels that are lists, or numbers. Those of lists are words, unless all are numbers."""
    features["label"] = datasets.Value("float64")
    if isinstance(values["label"][0], list):
        numbers = all(type(each) is int for found in values["label"] for each in found)
        if not numbers:
            values["label"] = [[str(each) for each in found] for found in values["label"]]
        features["label"] = [(classes or datasets.Value("int64")) if numbers else datasets.Value("large_string")]
    return datasets.Dataset.from_dict(values, datasets.Features(features))


def _warn_of_mixed(labels: list[Any], places: list[str], warn: Warn) -> None:
    """Labels of which some are numbers and some are words."""
    firsts: dict[bool, Any] = {}
    for label in dict.fromkeys(labels):
        firsts.setdefault(type(label) is int or _whole(label) is not None, label)
    if len(firsts) == 2:
        number, word = (f"{firsts[kind]!s:.40}, {places[labels.index(firsts[kind])]}" for kind in (True, False))
        warn(f"some labels are numbers ({number}), others words ({word}): all are taken as words.")


def _is_none(value: Any) -> bool:
    """Whether a text stands for a label that is missing."""
    return isinstance(value, str) and (value.strip() in NO_VALUE or value.strip().lstrip("+-").casefold() == "nan")


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _is_number(text: str) -> bool:
    try:
        return "_" not in text and float(text) is not None  # Python takes 1_000 for 1000
    except ValueError:
        return False


def _whole(text: str) -> int | None:
    """The whole number that a text is, also one written as `1.0`; None for any other text."""
    if not _is_number(text):
        return None
    try:
        return int(text)
    except ValueError:
        return int(float(text)) if float(text).is_integer() else None


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
        source, is_one_text = f"data.path={path}", "label" not in known.columns.values()

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
    absent = (None, *label_values.NO_LABEL)
    return rows.filter(lambda row: all(v if key != "label" else v not in absent for key, v in row.items()))
