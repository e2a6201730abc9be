"""Conversations from files: rows with a list of messages, with a prompt and its completion, or as ShareGPT and Alpaca
have them.

A conversation is a list of messages, each with `role`, `content` and `more` (JSON: whatever else the message carries,
which the template is given as transformers gives it: the tools that are called, the thoughts before an answer), in a
datasets.Dataset with the columns `messages`, `tools` (JSON: those that may be called, or null), `arguments` (JSON:
variables of the template, or null) and `place` (the file and the row, for messages about it).
"""

import ast
import contextlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import datasets

from legroom.data import text_files
from legroom.data.bad_rows import BadRows
from legroom.data.text_data import Warn, encodable
from legroom.data.text_files import Rows
from legroom.errors import Refusal
from legroom.options import data as data_options

SHAREGPT, SYSTEM, ALPACA = "conversations", "system", ("instruction", "input", "output")  # columns
CHOSEN, REJECTED = "chosen", "rejected"  # columns of preferences
FROM = {"human": "user", "gpt": "assistant"}  # roles of ShareGPT; others have the names in ROLES
ROLES = ("system", "developer", "user", "assistant", "tool")
TOOLS = "tools"  # the column, as transformers and datasets of the hub call it
LABEL = "label"  # the column of true and false answers, beside prompt and completion
WEIGHT = "weight"  # key of an answer, as OpenAI's files have it: 0 where it is not learned
ARGUMENTS = "chat_template_kwargs"  # the column of a row's own variables of the template, as TRL calls it
CALLS = "tool_calls"  # key of an answer
OBJECTS = re.compile(r"\s*\[\s*\{")  # how a list of messages begins that a table of texts holds in a cell
LONGEST_LITERAL = 1_000_000  # characters; Python's parser takes 200 bytes of memory for each
SAVED_AS_TEXT = "messages that were saved as text"
TEXT = datasets.Value("string")
FEATURES = datasets.Features(
    {"messages": [{"role": TEXT, "content": TEXT, "more": TEXT}], "tools": TEXT, "arguments": TEXT, "place": TEXT}
)


@dataclass(frozen=True)
class Columns:
    """The names of the columns that hold conversations."""

    messages: str = "messages"
    prompt: str = "prompt"
    completion: str = "completion"

    def of_kind(self, kind: str) -> list[str]:
        """Those that files of a kind are asked for: fields of .csv are texts. Of tables all are read that any
        form of a conversation has."""
        if kind in text_files.DEFAULT_SEPARATOR:
            return [self.prompt, self.completion]
        of_any = [
            self.messages,
            self.prompt,
            self.completion,
            TOOLS,
            ARGUMENTS,
            SHAREGPT,
            SYSTEM,
            *ALPACA,
            CHOSEN,
            LABEL,
        ]
        return of_any if kind in (".parquet", "") else [self.messages]


def collect(rows: Rows, columns: Columns, source: str, warn: Warn, bad: BadRows) -> datasets.Dataset:
    """The conversations of rows, each with its place.

    source: key and value of the option that names them. warn: is given what is left out or assumed. bad: is given rows
    that hold no conversation. Raises Refusal if no row is left.
    """
    found: dict[str, list] = {name: [] for name in FEATURES}
    beside, forms = text_files.Unread(), Counter[str]()
    for place, row in rows:
        where = f"{source}: {place}"
        bad.rows += 1
        try:
            messages, used, form = conversation(row, columns, where)
            values = (messages, _tools(row.get(TOOLS), where), _arguments(row.get(ARGUMENTS), where), place)
        except Refusal as refusal:
            bad.add(place, str(refusal))
            continue
        for name, value in zip(FEATURES, values):
            found[name].append(value)
        beside.add(row, (*used, TOOLS, ARGUMENTS))
        forms[form] += 1
    if not found["place"]:
        bad.check_all(source)
        raise Refusal(f"{source} has no rows.")
    for form in filter(None, forms):
        warn(f"{forms[form]:,} of {len(found['place']):,} rows are read as {form}.")
    if beside:
        warn(
            f"only the conversation is read of a row, and not {beside}. What a model is to see goes into "
            "its messages, or into the prompt."
        )
    return datasets.Dataset.from_dict(found, features=FEATURES)


def _tools(value: Any, where: str) -> str | None:
    """The tools of a row as JSON, or None. They may be a text that is JSON, as in files of columns."""
    if value in (None, "", [], text_files.NOT_READ):
        return None
    tools = _read(value) if isinstance(value, str) else value
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Refusal(f"{where}: {TOOLS} is {text_files.shown(value)}, not a list of objects, one for each tool.")
    return encodable(json.dumps(tools, ensure_ascii=False), f"{where}: {TOOLS} holds") if tools else None


def _arguments(value: Any, where: str) -> str | None:
    """The template's variables of a row as JSON, or None."""
    if value in (None, "", {}, text_files.NOT_READ):
        return None
    arguments = _read(value) if isinstance(value, str) else value
    if not isinstance(arguments, dict):
        raise Refusal(f"{where}: {ARGUMENTS} is {text_files.shown(value)}, not an object of the template's variables.")
    for name in arguments:
        if name in data_options.GIVEN_TO_TEMPLATES:
            raise Refusal(f"{where}: {ARGUMENTS} has {name}, which is no variable of the template.")
    return encodable(json.dumps(arguments, ensure_ascii=False, default=str), f"{where}: {ARGUMENTS} holds")


Message = dict[str, str | None]


def conversation(row: dict[str, Any], columns: Columns, where: str) -> tuple[list[Message], tuple[str, ...], str]:
    """(the messages of a row, the columns that they come from, the form where it is not the usual one).

    where: begins a message about it. Raises Refusal if the row holds no conversation.
    """
    messages, column = row.get(columns.messages), columns.messages
    if messages is None and columns.prompt in row and columns.completion in row:
        if str(row.get(LABEL)).strip().casefold() == "false":  # as a text in a .csv file
            raise Refusal(f"{where}: {LABEL} is false. TRL's KTOTrainer unlearns wrong answers; take them out here.")
        halves = {columns.prompt: "user", columns.completion: "assistant"}
        values = {name: _listed(row[name]) for name in halves}
        said = [_part(values[name], role, f"{where}: {name}") for name, role in halves.items()]
        as_text = any(values[name] is not row[name] for name in halves)
        return said[0] + said[1], tuple(halves), SAVED_AS_TEXT if as_text else ""
    if messages is None and row.get(ALPACA[0]) is not None and ALPACA[2] in row:
        return _alpaca(row, where), (*ALPACA, SYSTEM), f"Alpaca ({ALPACA[0]}, an empty line, {ALPACA[1]}; {ALPACA[2]})"
    if messages is None:
        messages, column = row.get(SHAREGPT), SHAREGPT
    if messages is None:
        raise Refusal(f"{where}: {_no_conversation(row, columns)}")
    as_text = isinstance(messages, str) and OBJECTS.match(messages) is not None
    if as_text and (messages := _read(messages)) is None:
        raise Refusal(
            f"{where}: {column} is {text_files.shown(row[column])}: a list of messages as text, which is neither JSON "
            "nor Python's. Save the rows as .jsonl or .parquet."
        )
    if not isinstance(messages, list):
        raise Refusal(f"{where}: {column} is {text_files.shown(messages)}, not a list of messages.")
    if not messages:
        raise Refusal(f"{where}: {column} is an empty list.")
    found = [_message(message, f"{where}, message {number}") for number, message in enumerate(messages, 1)]
    if "from" not in messages[0]:
        return found, (column,), SAVED_AS_TEXT if as_text else ""
    return _system(row, where) * (found[0]["role"] != "system") + found, (column, SYSTEM), "ShareGPT (from, value)"


def _part(value: Any, role: str, where: str) -> list[Message]:
    """A prompt (role: user) or a completion (assistant): a text, or messages, as TRL has them."""
    if not isinstance(value, list) or not any(isinstance(each, dict) and {"role", "from"} & {*each} for each in value):
        return [_said(role, _content(value, role, where))]
    return [_message(each, f"{where}, message {n}", role == "user") for n, each in enumerate(value, 1)]


def _read(text: str) -> Any:
    """What a text says in JSON or as Python writes it, which pandas does; None where it says nothing."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text, strict=False)
    if len(text) <= LONGEST_LITERAL:
        with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return json.loads(json.dumps(ast.literal_eval(text)))  # which knows no sets and no bytes
    return None


def _listed(value: Any) -> Any:
    """The messages that a text is; other values, and other texts, as they are. An answer may be a list of objects."""
    messages = _read(value) if isinstance(value, str) and OBJECTS.match(value) else None
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        return value
    said = [{"content", "value", "tool_calls"} & {*each} for each in messages]
    return messages if all(said) and all(_role(each) in ROLES for each in messages) else value


def _role(message: dict[str, Any]) -> Any:
    role = message.get("role", message.get("from"))
    return FROM.get(role, role) if isinstance(role, str) and "role" not in message else role


def _said(role: str, content: str) -> Message:
    return {"role": role, "content": content, "more": None}


def _system(row: dict[str, Any], where: str) -> list[Message]:
    """The system message of a column beside the conversation."""
    return [_said("system", _content(row[SYSTEM], "system", f"{where}: {SYSTEM}"))] if row.get(SYSTEM) else []


def _alpaca(row: dict[str, Any], where: str) -> list[Message]:
    """The messages of an instruction; without an answer where it has none, which leaves it out."""
    parts = [_content(row[name], "user", f"{where}: {name}") for name in ALPACA[:2] if row.get(name)]
    asked = [*_system(row, where), _said("user", "\n\n".join(parts))]
    answer = row[ALPACA[2]]
    return [*asked, _said("assistant", _content(answer, "assistant", f"{where}: {ALPACA[2]}"))] if answer else asked


def _no_conversation(row: dict[str, Any], columns: Columns) -> str:
    """What is said of a row that is in none of the forms."""
    if CHOSEN in row and REJECTED in row:
        chosen = _listed(row[CHOSEN])
        first = chosen[0] if isinstance(chosen, list) and chosen else None
        typed = f"data=text data.text_column={CHOSEN} (data=hub: data.task=language_modelling)"
        if isinstance(first, dict) and first.get("role", first.get("from")) not in ("assistant", "gpt"):
            typed = f"data.messages_column={CHOSEN}"
        elif isinstance(row.get(columns.prompt), (str, list)):
            typed = f"data.completion_column={CHOSEN}"
        elif not isinstance(chosen, str):
            typed = ""
        alone = f" To learn what is chosen alone, type {typed}." if typed else ""
        return f"{CHOSEN} and {REJECTED} are preferences, which TRL's DPOTrainer learns and Legroom does not.{alone}"
    texts = [name for name, value in row.items() if isinstance(value, str)]
    first, second = texts if len(texts) == 2 else ("", "")
    return (
        f"there is no {columns.messages}, and no {columns.prompt} with {columns.completion}: it has "
        f"{', '.join(list(row)[:8]) or 'no column'}. Name the columns with data.messages_column=, or with "
        f"data.prompt_column={first} and data.completion_column={second}."
    )


def _message(message: Any, where: str, in_prompt: bool = False) -> Message:
    """in_prompt: an answer is not learned. The rest: see `conversation`."""
    if not isinstance(message, dict):
        raise Refusal(f"{where} is {text_files.shown(message)}, not an object with role and content.")
    names = ("from", "value") if "from" in message and "role" not in message else ("role", "content")
    role = _role(message)
    if role not in ROLES:
        known = "it has no role" if role is None else f"the role {role!s:.40} is not known"
        keys = f" (its keys: {', '.join(list(message)[:8])})" if role is None else ""
        raise Refusal(f"{where}: {known}{keys}. A role is {', '.join(ROLES[:-1])} or {ROLES[-1]}.")
    said = {*names, "role", "content", WEIGHT}
    more = {key: value for key, value in message.items() if key not in said and value is not None}
    if not more.get(CALLS):  # templates ask whether the key is there
        more.pop(CALLS, None)
    if message.get(WEIGHT) not in (None, 0, 1):
        raise Refusal(f"{where}: {WEIGHT} is {message[WEIGHT]!s:.40}. It is 1, or 0 for an answer that is not learned.")
    more |= {WEIGHT: 0} if message.get(WEIGHT) == 0 or (in_prompt and role == "assistant") else {}
    content, where = message.get(names[1]), f"{where} ({role})"
    if CALLS in more:
        more[CALLS] = _calls(more[CALLS], where)
        content = content or ""
    return {
        "role": role,
        "content": _content(content, role, f"{where}: {names[1]}", CALLS in more),
        "more": encodable(json.dumps(more, ensure_ascii=False, default=str), f"{where} holds") if more else None,
    }


def _calls(calls: Any, where: str) -> list[dict]:
    """The calls of tools in a message. Arguments in a text, as OpenAI writes them, become the object that templates of
    models expect: they would be quoted twice."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Refusal(f"{where}: tool_calls is {text_files.shown(calls)}, not a list of objects.")
    for call in calls:
        named = call["function"] if isinstance(call.get("function"), dict) else call
        if isinstance(named.get("arguments"), str):
            try:
                named["arguments"] = json.loads(named["arguments"] or "{}")
            except ValueError as error:
                raise Refusal(f"{where}: the arguments of a call in tool_calls are no JSON: {error}.") from error
    return calls


def _content(value: Any, role: str, what: str, may_be_empty: bool = False) -> str:
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        other = next((part for part in value if not isinstance(part.get("text"), str)), None)
        if other is not None:
            raise Refusal(f"{what} has a part without a text ({other!s:.40}), and only texts are learned.")
        value = "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise Refusal(f"{what} is {text_files.shown(value)}, not a text.")
    may_be_empty |= role in ("system", "tool")  # an empty system prompt is one, and a tool may return nothing
    if not value.strip() and not may_be_empty:
        raise Refusal(f"{what} is empty.")
    return encodable(value, f"{what} holds")
