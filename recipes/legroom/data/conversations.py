"""Conversations from files: rows with a list of messages, or with a prompt and its completion.

A conversation is a list of messages, each with `role` and `content`, in a datasets.Dataset with the columns `messages`
and `place` (the file and the row, for messages about it).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from legroom.data import text_files
from legroom.data.text_data import Warn, encodable
from legroom.data.text_files import Format, Rows
from legroom.errors import Refusal
from legroom.options import data_sources

ROLES = ("system", "developer", "user", "assistant", "tool")
FEATURES = datasets.Features(
    {
        "messages": [{"role": datasets.Value("string"), "content": datasets.Value("string")}],
        "place": datasets.Value("string"),
    }
)


@dataclass(frozen=True)
class Columns:
    """The names of the columns that hold conversations."""

    messages: str = "messages"
    prompt: str = "prompt"
    completion: str = "completion"

    def of_kind(self, kind: str) -> list[str]:
        """Those that files of a kind are asked for: fields of .csv hold texts alone."""
        if kind in text_files.DEFAULT_SEPARATOR:
            return [self.prompt, self.completion]
        return [self.messages, self.prompt, self.completion] if kind == ".parquet" else [self.messages]


def read(files: list[Path], columns: Columns, source: str, form: Format, warn: Warn) -> datasets.Dataset:
    """The conversations of files.

    source: key and value of the option that names the files. warn: is given what is left out or assumed.
    Raises Refusal, with the file and the row, for a row that holds no conversation.
    """

    def rows() -> Rows:
        for path in files:
            wanted = columns.of_kind(data_sources.kind(path))
            for place, row in text_files.rows(path, wanted, form, source, lambda text: warn(f"{source}: {text}")):
                yield f"{path.name}, {place}", row

    return collect(rows(), columns, source, warn)


def collect(rows: Rows, columns: Columns, source: str, warn: Warn) -> datasets.Dataset:
    """The conversations of rows, each with its place. The other arguments are those of `read`."""
    found: dict[str, list] = {"messages": [], "place": []}
    unread: Counter[str] = Counter()
    for place, row in rows:
        found["messages"].append(conversation(row, columns, f"{source}: {place}", unread))
        found["place"].append(place)
    if not found["place"]:
        raise Refusal(f"{source} has no rows.")
    if unread:
        listed = data_sources.listed(f"{key} ({count:,})" for key, count in unread.most_common(5))
        warn(f"{source}: of a message only role and content are read; others have: {listed}.")
    return datasets.Dataset.from_dict(found, features=FEATURES)


def conversation(row: dict[str, Any], columns: Columns, where: str, unread: Counter[str]) -> list[dict[str, str]]:
    """The messages of a row. where: begins a message about it. unread: counts keys of messages that are not used.

    Raises Refusal if the row holds no conversation.
    """
    messages = row.get(columns.messages)
    if messages is None and columns.prompt in row and columns.completion in row:
        pair = (("user", columns.prompt), ("assistant", columns.completion))
        return [{"role": role, "content": _content(row[column], role, f"{where}: {column}")} for role, column in pair]
    if messages is None:
        raise Refusal(
            f"{where}: there is no {columns.messages}, and no {columns.prompt} with {columns.completion}: it has "
            f"{', '.join(list(row)[:8]) or 'no column'}. Name the columns with data.messages_column=, or with "
            "data.prompt_column= and data.completion_column=."
        )
    if not isinstance(messages, list):
        raise Refusal(f"{where}: {columns.messages} is {_shown(messages)}, not a list of messages.")
    if not messages:
        raise Refusal(f"{where}: {columns.messages} is an empty list.")
    return [_message(message, f"{where}, message {number}", unread) for number, message in enumerate(messages, 1)]


def _message(message: Any, where: str, unread: Counter[str]) -> dict[str, str]:
    if not isinstance(message, dict):
        raise Refusal(f"{where} is {_shown(message)}, not an object with role and content.")
    role = message.get("role")
    if role not in ROLES:
        known = "it has no role" if role is None else f"the role {role!s:.40} is not known"
        keys = f" (its keys: {', '.join(list(message)[:8])})" if role is None else ""
        raise Refusal(f"{where}: {known}{keys}. A role is {', '.join(ROLES[:-1])} or {ROLES[-1]}.")
    for key, value in message.items():
        if key not in ("role", "content") and value not in (None, "", [], {}):
            unread[key] += 1
    return {"role": role, "content": _content(message.get("content"), role, f"{where} ({role}): content")}


def _content(value: Any, role: str, what: str) -> str:
    if not isinstance(value, str):
        raise Refusal(f"{what} is {_shown(value)}, not a text.")
    if not value.strip() and role != "system":  # an empty system prompt is one
        raise Refusal(f"{what} is empty.")
    return encodable(value, f"{what} holds")


def _shown(value: Any) -> str:
    """What a value is, for a message."""
    if value is None:
        return "missing"
    names = {list: "a list", dict: "an object", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), f"{type(value).__name__} ({value!s:.40})")
