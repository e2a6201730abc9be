"""Reads the rows of text files, with the place of each: the file's name and the line.

.txt: the file is a row, or each part between empty lines, or each line. .csv and .tsv: the first line names the
columns. .jsonl: an object per line. .json: a list of objects, or an object per line.
"""

import csv
import dataclasses
import itertools
import json
import lzma
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
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

    def bad_line(self, path: Path, place: str, said: str) -> None:
        """Count a line that is no row. Raises BadFile where nobody counts them."""
        if self.bad is None:
            raise BadFile(f"{place}: {said}")
        self.bad.rows += 1
        self.bad.add(f"{path.name}, {place}", f"{self.source}: {path.name}, {place}: {said}")


NOT_READ = object()  # stands for the value of a column that is in the file and was not read


class Unread(Counter[str]):
    """Columns whose values are not used -> rows that have one; 0 if the column was not read."""

    def add(self, row: dict[str, Any], used: Collection[str]) -> None:
        """Counts the values of a row in other columns than those used."""
        for key, value in row.items():
            if key not in used and value not in (None, "", [], {}):
                self[key] += value is not NOT_READ

    def __str__(self) -> str:
        shown = [f"{key} ({count:,})" if count else key for key, count in self.most_common(MOST_UNREAD)]
        return data_sources.listed(shown + ["others"] * (len(self) > MOST_UNREAD))


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
        by_line = form.documents != "blank_line"
        for has_text, lines in itertools.groupby(enumerate(file, 1), lambda each: by_line or bool(each[1].strip())):
            for number, line in lines if has_text else ():
                text = line if by_line else line + "".join(more for _, more in lines)
                yield f"line {number}", {"text": text if form.documents == "line_break" else text.removesuffix("\n")}


def _separated(path: Path, columns: list[str], form: Format, warn: Callable[[str], None]) -> Rows:
    separator = NAMED[form.separator] if form.separator else _separator(path, columns, form, warn)
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
                    yield f"line {line}", dict(zip(names, (field or None for field in fields)))
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
        names = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
        has = any(wanted and set(wanted) <= set(names) for wanted in (columns, form.instead))
        return has and (len(names) > 1 or separator == usual)

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
        found = json.loads(text) if text.strip() else []
    except RecursionError as error:
        raise BadFile(_json_reason(error)) from error
    except ValueError as error:
        if not _is_json(text.lstrip().partition("\n")[0]):
            line = f"line {error.lineno}: " if isinstance(error, json.JSONDecodeError) else ""
            raise BadFile(f"{line}{_json_reason(error)}") from error
        yield from _json_lines(path, columns, form, warn)  # an object per line, in a file named .json
        return
    if isinstance(found, dict) and "context" in columns and _is_squad(found.get("data")):
        found = list(_squad(found["data"]))
    if isinstance(found, dict) and set(columns) <= found.keys() and not isinstance(found[columns[0]], list):
        found = [found]  # the only line of such a file
    if isinstance(found, dict) and (key := _key_of_rows(found, columns)) is not None:
        warn(f"{path.name}: its rows are those of the key {key}.")
        found = found[key]
    if not isinstance(found, list):
        keys = f" with the keys {', '.join(list(found)[:8])}" if isinstance(found, dict) else ""
        raise BadFile(f"it holds {shown(found)}{keys}, not a list of objects, one for each row.")
    for number, row in enumerate(found, 1):
        if isinstance(row, dict):
            yield f"row {number}", row
        else:
            form.bad_line(path, f"row {number}", _not_an_object(row, columns))


def _is_squad(articles: Any) -> bool:
    return isinstance(articles, list) and not any(
        isinstance(each, dict) and "question" in each for each in articles[:1]
    )


def _key_of_rows(found: dict[str, Any], columns: list[str]) -> str | None:
    """The only key of an object whose value is a list of objects, as of {"data": [...]}; none of a row's own keys."""
    lists = [
        key
        for key, value in found.items()
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value)
    ]
    return lists[0] if len(lists) == 1 and lists[0] not in columns else None


def _squad(articles: list) -> Iterator[dict[str, Any]]:
    """The questions of SQuAD's own file, which nests them: articles, paragraphs, questions."""
    try:
        for paragraph in itertools.chain.from_iterable(article["paragraphs"] for article in articles):
            for each in paragraph["qas"]:
                answers = {key: [answer[key] for answer in each["answers"]] for key in ("text", "answer_start")}
                yield {"question": each["question"], "context": paragraph["context"], "answers": answers}
    except (KeyError, TypeError) as error:
        raise BadFile(f"it has `data`, and not SQuAD's form of it: {error!r}") from error


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _json_reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}; a row is one JSON object."
    return "it is nested too deeply." if isinstance(error, RecursionError) else str(error)


def _not_an_object(row: Any, columns: list[str]) -> str:
    return f"it is {shown(row)}, not an object with the key {' and '.join(columns)}."


def shown(value: Any) -> str:
    """What a value is, for a message."""
    names = {list: "a list", dict: "an object", type(None): "missing"}
    return names.get(type(value), f"{type(value).__name__} ({value!s:.40})")


def _parquet(path: Path, columns: list[str], form: Format, warn: Callable[[str], None]) -> Rows:
    file = parquet.ParquetFile(path)
    names = file.schema_arrow.names
    wanted = [name for name in columns if name in names] or names[:1]
    number = 0
    for batch in file.iter_batches(columns=wanted):
        for values in batch.to_pylist():
            number += 1
            yield f"row {number}", dict.fromkeys(names, NOT_READ) | without_nulls(values)


def without_nulls(value: Any, inside: bool = False) -> Any:
    """A row of Arrow without the keys of its objects that are null: all objects of a column have the keys of all."""
    if isinstance(value, dict):
        return {key: without_nulls(each, True) for key, each in value.items() if not inside or each is not None}
    return [without_nulls(each, inside) for each in value] if isinstance(value, list) else value


READERS: dict[str, Callable[[Path, list[str], Format, Callable[[str], None]], Rows]] = {
    ".txt": _documents,
    ".csv": _separated,
    ".tsv": _separated,
    ".json": _json,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
