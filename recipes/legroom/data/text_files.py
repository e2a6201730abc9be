"""Reads the rows of text files, with the place of each: the file's name and the line.

.txt: the file is a row, or each part between empty lines, or each line. .csv and .tsv: the first line names the
columns. .jsonl: an object per line. .json: a list of objects, or an object per line.
"""

import csv
import dataclasses
import json
import lzma
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from legroom.data import open_text
from legroom.data.bad_rows import BadRows
from legroom.errors import Refusal, first_line
from legroom.options import data_sources

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
NAMED = {name: separator for separator, name in SEPARATORS.items()}
DEFAULT_SEPARATOR = {".csv": ",", ".tsv": "\t"}
MOST_UNREAD = 8  # columns in a message
Rows = Iterator[tuple[str, dict[str, Any]]]  # ("line 3", column -> value)


@dataclass
class Format:
    """How text files are written. separator: name of that of .csv and .tsv; None: found.

    documents: what a row of a .txt file is: file, blank_line or line, each without the line break at its end, or
    "line_break" for a line with it. instead: columns that .csv and .tsv may have instead of those that are needed.
    bad: is given lines that are no row; None: the first one is refused. source: the option that names the files.
    """

    encoding: str = "utf-8"
    separator: str | None = None
    documents: str = "file"
    instead: tuple[str, ...] = ()
    bad: BadRows | None = None
    source: str = ""

    def bad_line(self, path: Path, place: str, problem: str) -> None:
        """Counts a line that is no row. Raises BadFile where nobody counts them."""
        if self.bad is None:
            raise BadFile(f"{place}: {problem}")
        self.bad.rows += 1
        self.bad.add(f"{path.name}, {place}", f"{self.source}: {path.name}, {place}: {problem}")


NOT_READ = object()  # stands for the value of a column that is in the file and was not read


class Unread(Counter[str]):
    """Columns whose values are not used -> rows that have one; 0 if the column was not read."""

    def add(self, row: dict[str, Any], used: Collection[str]) -> None:
        """Counts the values of a row in other columns than those used."""
        for key, value in row.items():
            if key in used or value in (None, "", [], {}):
                continue
            self[key] += 0 if value is NOT_READ else 1

    def __str__(self) -> str:
        names = [f"{key} ({count:,})" if count else key for key, count in self.most_common(MOST_UNREAD)]
        if len(self) > MOST_UNREAD:
            names.append("others")
        return data_sources.listed(names)


class BadFile(Exception):
    """A file that cannot be read. The message says where and why, without the file's name."""


def rows(path: Path, columns: list[str], form: Format, source: str, warn: Callable[[str], None]) -> Rows:
    """The rows of a file. columns: those that are needed. source: the option that names the files, for messages.

    warn: is given what was assumed. Raises Refusal for a file that cannot be read.
    """
    form = dataclasses.replace(form, source=source)
    try:
        if data_sources.kind(path) != ".parquet" and open_text.is_utf8_read_as(path, form.encoding):
            warn(f"{path.name} seems to be in utf-8, and is read as {form.encoding}, which data.encoding says.")
        yield from READERS[data_sources.kind(path)](path, columns, form, warn)
    except BadFile as bad:
        raise Refusal(f"{source}: {path.name} cannot be read: {bad}") from bad
    except UnicodeError as error:
        raise Refusal(
            f"{source}: {path.name} cannot be read: {open_text.wrong_encoding(path, form.encoding)}"
        ) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pyarrow.ArrowException) as error:
        raise Refusal(f"{source}: {path.name} cannot be read: {first_line(error)}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "zstandard":  # its error, without importing an optional package
            raise
        raise Refusal(f"{source}: {path.name} cannot be read: {error}") from error


def placed(files: list[Path], columns: list[str], form: Format, source: str, warn: Callable[[str], None]) -> Rows:
    """The rows of several files, with the file and the line of each. The rest: see `rows`."""
    for path in files:
        for place, row in rows(path, columns, form, source, warn):
            yield f"{path.name}, {place}", row


def _documents(path: Path, columns: list[str], form: Format, warn: Callable[[str], None]) -> Rows:
    with open_text.open_text(path, form.encoding) as file:
        if form.documents == "file":
            text = file.read().removesuffix("\n")
            if text.strip():
                yield "line 1", {"text": text}
            return
        if form.documents == "blank_line":
            yield from _parts_between_empty_lines(file)
            return
        for number, line in enumerate(file, 1):
            text = line if form.documents == "line_break" else line.removesuffix("\n")
            yield f"line {number}", {"text": text}


def _parts_between_empty_lines(file: Iterable[str]) -> Rows:
    begin = 0
    lines: list[str] = []
    for number, line in enumerate(file, 1):
        if line.strip():
            if not lines:
                begin = number
            lines.append(line)
        elif lines:
            yield f"line {begin}", {"text": "".join(lines).removesuffix("\n")}
            lines = []
    if lines:
        yield f"line {begin}", {"text": "".join(lines).removesuffix("\n")}


def _separated(path: Path, columns: list[str], form: Format, warn: Callable[[str], None]) -> Rows:
    if form.separator:
        separator = NAMED[form.separator]
    else:
        separator = _separator(path, columns, form, warn)
    csv.field_size_limit(sys.maxsize)  # a field is a text of any length
    with open_text.open_text(path, form.encoding, newline="") as file:
        reader = csv.reader(file, delimiter=separator, strict=True)
        line = 1
        try:
            names = [name.strip() for name in next(reader, [])]
            for name in (*columns, *form.instead):
                if names.count(name) > 1:
                    raise BadFile(f"line 1 names the column {name} {names.count(name)} times.")
            line = reader.line_num + 1
            for fields in reader:
                if len(fields) > len(names):
                    form.bad_line(
                        path,
                        f"line {line}",
                        f"it has {len(fields)} fields, and the header {len(names)}. A text with "
                        f"{SEPARATORS[separator]}s in it must be in double quotes.",
                    )
                elif fields:  # else an empty line
                    values = [field or None for field in fields]
                    yield f"line {line}", dict(zip(names, values))
                line = reader.line_num + 1
            if line == 2 and names:
                raise BadFile("it has a header and no rows.")
        except csv.Error as error:
            raise BadFile(
                f"the row from line {line} on: {error}. A field that begins with a double quote ends with one, and "
                "quotes in it are doubled."
            ) from error


def _separator(path: Path, columns: list[str], form: Format, warn: Callable[[str], None]) -> str:
    """The separator of the kind of file, or the only other one by which the header has the needed columns."""
    usual = DEFAULT_SEPARATOR[data_sources.kind(path)]
    with open_text.open_text(path, form.encoding, newline="") as file:
        header = file.readline().rstrip("\r\n")

    def fits(separator: str) -> bool:
        names = {name.strip() for name in next(csv.reader([header], delimiter=separator), [])}
        if separator != usual and len(names) < 2:
            return False
        return any(wanted and set(wanted) <= names for wanted in (columns, form.instead))

    others = [separator for separator in SEPARATORS if separator != usual and fits(separator)]
    if fits(usual) or len(others) != 1:
        return usual
    warn(f"{path.name}: the separator is taken to be a {SEPARATORS[others[0]]}, as its first line shows.")
    return others[0]


def _json_lines(path: Path, columns: list[str], form: Format, warn: Callable[[str], None]) -> Rows:
    with open_text.open_text(path, form.encoding) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                form.bad_line(path, f"line {number}", _json_reason(error))
                continue
            if isinstance(row, dict):
                yield f"line {number}", row
            else:
                form.bad_line(path, f"line {number}", _not_an_object(row, columns))


def _json(path: Path, columns: list[str], form: Format, warn: Callable[[str], None]) -> Rows:
    with open_text.open_text(path, form.encoding) as file:
        text = file.read()
    try:
        content = json.loads(text) if text.strip() else []
    except RecursionError as error:
        raise BadFile(_json_reason(error)) from error
    except ValueError as error:
        first_line = text.lstrip().partition("\n")[0]
        if not _is_object(first_line):
            line = f"line {error.lineno}: " if isinstance(error, json.JSONDecodeError) else ""
            raise BadFile(f"{line}{_json_reason(error)}") from error
        yield from _json_lines(path, columns, form, warn)  # an object per line, in a file named .json
        return
    if isinstance(content, dict):
        content = _rows_of_object(content, path, columns, warn)
    if not isinstance(content, list):
        keys = f" with the keys {', '.join(list(content)[:8])}" if isinstance(content, dict) else ""
        raise BadFile(f"it holds {shown(content)}{keys}, not a list of objects, one for each row.")
    for number, row in enumerate(content, 1):
        if isinstance(row, dict):
            yield f"row {number}", row
        else:
            form.bad_line(path, f"row {number}", _not_an_object(row, columns))


def _rows_of_object(content: dict[str, Any], path: Path, columns: list[str], warn: Callable[[str], None]) -> Any:
    """The rows in a .json file that holds one object; the object itself where it holds none."""
    if "context" in columns and _is_squad(content.get("data")):
        return list(_squad(content["data"]))
    if set(columns) <= content.keys() and not isinstance(content[columns[0]], list):
        return [content]  # the only line of a file with an object per line
    lists = [key for key, value in content.items() if _is_list_of_objects(value)]
    if len(lists) != 1 or lists[0] in columns:
        return content
    warn(f"{path.name}: its rows are those of the key {lists[0]}.")  # {"data": [...]}
    return content[lists[0]]


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(item, dict) for item in value)


def _is_squad(articles: Any) -> bool:
    """Whether a list is one of SQuAD's articles, and not one of questions."""
    if not isinstance(articles, list):
        return False
    has_questions = articles and isinstance(articles[0], dict) and "question" in articles[0]
    return not has_questions


def _squad(articles: list) -> Iterator[dict[str, Any]]:
    """The questions of SQuAD's own file, which nests them: articles, paragraphs, questions."""
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = {
                        "text": [answer["text"] for answer in question["answers"]],
                        "answer_start": [answer["answer_start"] for answer in question["answers"]],
                    }
                    yield {"question": question["question"], "context": paragraph["context"], "answers": answers}
    except (KeyError, TypeError) as error:
        raise BadFile(f"it has `data`, and not SQuAD's form of it: {error!r}") from error


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _json_reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}; a row is one JSON object."
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    return str(error)


def _not_an_object(row: Any, columns: list[str]) -> str:
    return f"it is {shown(row)}, not an object with the key {' and '.join(columns)}."


def shown(value: Any) -> str:
    """What kind of value one is, for a message: 'a list', 'int (3)'."""
    if value is None:
        return "missing"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    return f"{type(value).__name__} ({value!s:.40})"


def _parquet(path: Path, columns: list[str], form: Format, warn: Callable[[str], None]) -> Rows:
    file = parquet.ParquetFile(path)
    names = file.schema_arrow.names
    wanted = [name for name in columns if name in names] or names[:1]  # no column at all would give no rows
    not_read = dict.fromkeys(names, NOT_READ)
    number = 0
    for batch in file.iter_batches(columns=wanted):
        for values in batch.to_pylist():
            number += 1
            yield f"row {number}", not_read | without_nulls(values)


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """A row of Arrow without the keys of its objects that are null: all objects of a column have the keys of all."""
    return {column: _without_nulls(value) for column, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


READERS: dict[str, Callable[[Path, list[str], Format, Callable[[str], None]], Rows]] = {
    ".txt": _documents,
    ".csv": _separated,
    ".tsv": _separated,
    ".json": _json,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
