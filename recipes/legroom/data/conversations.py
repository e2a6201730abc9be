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
        if kind not in (".parquet", ""):
            return [self.messages]
        of_rows = [self.messages, self.prompt, self.completion, SHAREGPT, *ALPACA]
        beside_them = [TOOLS, ARGUMENTS, SYSTEM, CHOSEN, LABEL]
        return of_rows + beside_them


def collect(rows: Rows, columns: Columns, source: str, warn: Warn, bad: BadRows) -> datasets.Dataset:
    """The conversations of rows, each with its place.

    source: key and value of the option that names them. warn: is given what is left out or assumed. bad: is given rows
    that hold no conversation. Raises Refusal if no row is left.
    """
    found: dict[str, list] = {name: [] for name in FEATURES}
    beside = text_files.Unread()
    forms = Counter[str]()
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
    for form, count in forms.items():
        if form:
            warn(f"{count:,} of {len(found['place']):,} rows are read as {form}.")
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
    if not tools:
        return None
    return encodable(json.dumps(tools, ensure_ascii=False), f"{where}: {TOOLS} holds")


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
    if row.get(columns.messages) is not None:
        return _list_of_messages(row, columns.messages, where)
    if columns.prompt in row and columns.completion in row:
        return _prompt_and_completion(row, columns, where)
    instruction, other_input, output = ALPACA
    if row.get(instruction) is not None and output in row:
        form = f"Alpaca ({instruction}, an empty line, {other_input}; {output})"
        return _alpaca(row, where), (*ALPACA, SYSTEM), form
    if row.get(SHAREGPT) is not None:
        return _list_of_messages(row, SHAREGPT, where)
    raise Refusal(f"{where}: {_no_conversation(row, columns)}")


def _prompt_and_completion(
    row: dict[str, Any], columns: Columns, where: str
) -> tuple[list[Message], tuple[str, ...], str]:
    """`conversation` of a row with a prompt and its completion."""
    if str(row.get(LABEL)).strip().casefold() == "false":  # as a text in a .csv file
        raise Refusal(f"{where}: {LABEL} is false. TRL's KTOTrainer unlearns wrong answers; take them out here.")
    prompt = _listed(row[columns.prompt])
    completion = _listed(row[columns.completion])
    messages = _part(prompt, "user", f"{where}: {columns.prompt}")
    messages += _part(completion, "assistant", f"{where}: {columns.completion}")
    was_text = prompt is not row[columns.prompt] or completion is not row[columns.completion]
    return messages, (columns.prompt, columns.completion), SAVED_AS_TEXT if was_text else ""


def _list_of_messages(row: dict[str, Any], column: str, where: str) -> tuple[list[Message], tuple[str, ...], str]:
    """`conversation` of a row with a column of messages, in OpenAI's form or in ShareGPT's."""
    messages = row[column]
    was_text = isinstance(messages, str) and OBJECTS.match(messages) is not None
    if was_text:
        messages = _read(messages)
        if messages is None:
            raise Refusal(
                f"{where}: {column} is {text_files.shown(row[column])}: a list of messages as text, which is neither "
                "JSON nor Python's. Save the rows as .jsonl or .parquet."
            )
    if not isinstance(messages, list):
        raise Refusal(f"{where}: {column} is {text_files.shown(messages)}, not a list of messages.")
    if not messages:
        raise Refusal(f"{where}: {column} is an empty list.")
    conversation = [_message(message, f"{where}, message {number}") for number, message in enumerate(messages, 1)]
    if "from" not in messages[0]:
        return conversation, (column,), SAVED_AS_TEXT if was_text else ""
    if conversation[0]["role"] != "system":
        conversation = _system(row, where) + conversation
    return conversation, (column, SYSTEM), "ShareGPT (from, value)"


def _part(value: Any, role: str, where: str) -> list[Message]:
    """A prompt (role: user) or a completion (assistant): a text, or messages, as TRL has them."""
    if not _are_messages(value):
        return [_plain_message(role, _content(value, role, where))]
    in_prompt = role == "user"
    return [_message(message, f"{where}, message {number}", in_prompt) for number, message in enumerate(value, 1)]


def _are_messages(value: Any) -> bool:
    """Whether a value is a list with a message in it, and not one of the parts of a content."""
    if not isinstance(value, list):
        return False
    return any(isinstance(item, dict) and ("role" in item or "from" in item) for item in value)


def _read(text: str) -> Any:
    """The value that a text is in JSON, or as Python writes it, which pandas does; None where it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text, strict=False)
    if len(text) <= LONGEST_LITERAL:
        with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return json.loads(json.dumps(ast.literal_eval(text)))  # which knows no sets and no bytes
    return None


def _listed(value: Any) -> Any:
    """The messages that a text is; other values, and other texts, as they are. An answer may be a list of objects."""
    if not isinstance(value, str) or not OBJECTS.match(value):
        return value
    messages = _read(value)
    if not isinstance(messages, list):
        return value
    for message in messages:
        if not isinstance(message, dict) or _role(message) not in ROLES:
            return value
        if not {"content", "value", "tool_calls"}.intersection(message):
            return value
    return messages


def _role(message: dict[str, Any]) -> Any:
    if "role" in message:
        return message["role"]
    role = message.get("from")
    if isinstance(role, str):
        return FROM.get(role, role)
    return role


def _plain_message(role: str, content: str) -> Message:
    return {"role": role, "content": content, "more": None}


def _system(row: dict[str, Any], where: str) -> list[Message]:
    """The system message of a column beside the conversation."""
    if not row.get(SYSTEM):
        return []
    return [_plain_message("system", _content(row[SYSTEM], "system", f"{where}: {SYSTEM}"))]


def _alpaca(row: dict[str, Any], where: str) -> list[Message]:
    """The messages of an instruction; without an answer where it has none, which leaves it out."""
    instruction, other_input, output = ALPACA
    parts = []
    for name in (instruction, other_input):
        if row.get(name):
            parts.append(_content(row[name], "user", f"{where}: {name}"))
    messages = _system(row, where)
    messages.append(_plain_message("user", "\n\n".join(parts)))
    if row[output]:
        answer = _content(row[output], "assistant", f"{where}: {output}")
        messages.append(_plain_message("assistant", answer))
    return messages


def _no_conversation(row: dict[str, Any], columns: Columns) -> str:
    """The message about a row that is in none of the forms."""
    if CHOSEN in row and REJECTED in row:
        line = f"{CHOSEN} and {REJECTED} are preferences, which TRL's DPOTrainer learns and Legroom does not."
        typed = _how_to_learn_chosen(row, columns)
        if typed:
            line += f" To learn what is chosen alone, type {typed}."
        return line
    having = ", ".join(list(row)[:8]) or "no column"
    texts = [name for name, value in row.items() if isinstance(value, str)]
    prompt, completion = texts if len(texts) == 2 else ("", "")
    return (
        f"there is no {columns.messages}, and no {columns.prompt} with {columns.completion}: it has {having}. Name the "
        f"columns with data.messages_column=, or with data.prompt_column={prompt} and "
        f"data.completion_column={completion}."
    )


def _how_to_learn_chosen(row: dict[str, Any], columns: Columns) -> str:
    """What to type for the chosen answers of preferences; '' where nothing reads them."""
    chosen = _listed(row[CHOSEN])
    first = chosen[0] if isinstance(chosen, list) and chosen else None
    if isinstance(first, dict) and first.get("role", first.get("from")) not in ("assistant", "gpt"):
        return f"data.messages_column={CHOSEN}"  # with the prompt in front
    if isinstance(row.get(columns.prompt), (str, list)):
        return f"data.completion_column={CHOSEN}"
    if isinstance(chosen, str):
        return f"data=text data.text_column={CHOSEN} (data=hub: data.task=language_modelling)"
    return ""


def _message(message: Any, where: str, in_prompt: bool = False) -> Message:
    """A message of a row, checked. in_prompt: an answer is not learned. where: begins a message about it."""
    if not isinstance(message, dict):
        raise Refusal(f"{where} is {text_files.shown(message)}, not an object with role and content.")
    role = _role(message)
    if role not in ROLES:
        if role is None:
            problem = f"it has no role (its keys: {', '.join(list(message)[:8])})"
        else:
            problem = f"the role {role!s:.40} is not known"
        raise Refusal(f"{where}: {problem}. A role is {', '.join(ROLES[:-1])} or {ROLES[-1]}.")
    weight = message.get(WEIGHT)
    if weight not in (None, 0, 1):
        raise Refusal(f"{where}: {WEIGHT} is {weight!s:.40}. It is 1, or 0 for an answer that is not learned.")

    is_sharegpt = "from" in message and "role" not in message
    content_key = "value" if is_sharegpt else "content"
    read = {"role", "content", WEIGHT}
    if is_sharegpt:
        read |= {"from", "value"}
    more = {key: value for key, value in message.items() if key not in read and value is not None}
    if weight == 0 or (in_prompt and role == "assistant"):
        more[WEIGHT] = 0
    where = f"{where} ({role})"
    content = message.get(content_key)
    has_calls = bool(more.get(CALLS))
    if has_calls:
        more[CALLS] = _calls(more[CALLS], where)
        content = content or ""
    else:
        more.pop(CALLS, None)  # templates ask whether the key is there
    return {
        "role": role,
        "content": _content(content, role, f"{where}: {content_key}", has_calls),
        "more": encodable(json.dumps(more, ensure_ascii=False, default=str), f"{where} holds") if more else None,
    }


def _calls(calls: Any, where: str) -> list[dict]:
    """The calls of tools in a message. Arguments in a text, as OpenAI writes them, become the object that templates of
    models expect: they would be quoted twice."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Refusal(f"{where}: tool_calls is {text_files.shown(calls)}, not a list of objects.")
    for call in calls:
        function = call["function"] if isinstance(call.get("function"), dict) else call
        if isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = json.loads(function["arguments"] or "{}")
            except ValueError as error:
                raise Refusal(f"{where}: the arguments of a call in tool_calls are no JSON: {error}.") from error
    return calls


def _content(value: Any, role: str, what: str, may_be_empty: bool = False) -> str:
    """The text of a message. what: begins a message about it."""
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        for part in value:
            if not isinstance(part.get("text"), str):
                raise Refusal(f"{what} has a part without a text ({part!s:.40}), and only texts are learned.")
        value = "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise Refusal(f"{what} is {text_files.shown(value)}, not a text.")
    if role in ("system", "tool"):  # an empty system prompt is one, and a tool may return nothing
        may_be_empty = True
    if not value.strip() and not may_be_empty:
        raise Refusal(f"{what} is empty.")
    return encodable(value, f"{what} holds")
