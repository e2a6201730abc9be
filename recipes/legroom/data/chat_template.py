"""Conversations to token ids by a tokenizer's chat template, with what the assistant says marked.

A template is a program: it may trim contents, leave earlier turns out, or change them. The tokens of the answers are
therefore found in what it renders: an answer begins where the messages before it end, rendered with the prompt for an
answer, and ends where the messages up to it end. Where no answer begins as the prompt ends (a prompt that opens a
thought, before an answer without one), it begins behind what both have in common. Templates with transformers'
`generation` blocks mark them themselves.
"""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy

from legroom.data import time_limit
from legroom.data.collate import IGNORE_INDEX
from legroom.data.text_data import Warn
from legroom.data.tokens import Tokens
from legroom.errors import Refusal, first_line

PLAIN = (
    "{% for message in messages %}{{ message['role'] }}:\n{{ message['content'] }}"
    "{% if message['role'] == 'assistant' and eos_token is defined %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)
# Behind the token that begins a text, if the tokenizer puts it there.
PLAIN_SHOWN = "role:, the content in the next line, the token that ends a text after an answer, an empty line"
RENDERING_SECONDS = 10.0  # for one conversation, which takes milliseconds; nested loops of a template may take hours
MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None
Span = tuple[int, int]  # the first character, and the one after the last
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # keys of an answer that transformers takes for each other
# Keys that are no part of a message's text, or whose place in the text is checked by `_refuse_ignored`.
OF_TURNS = {"role", "content", "weight", "tool_calls", "tool_call_id"}
TRIED_ROWS = 1000  # in which a key is looked for before it is taken for one that the template never writes


@dataclass(frozen=True)
class Talk:
    """A conversation as a template is given it. where: begins a message on it. arguments: variables of the template."""

    messages: Messages
    where: str
    tools: Tools = None
    arguments: dict[str, Any] = field(default_factory=dict)

    def of(self, messages: Messages) -> "Talk":
        """The same with other messages."""
        return replace(self, messages=messages)


@dataclass
class Rendered:
    """A conversation as a row: ids (T,) and labels (T,), IGNORE_INDEX where the loss does not look."""

    ids: numpy.ndarray
    labels: numpy.ndarray


def _another(content: str) -> str:
    """A content with another beginning and another end."""
    return "y" if content.strip().startswith("x") else "x"


@contextlib.contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Turns what a template raises into a Refusal that begins with `where`, and ends one that does not end."""
    try:
        with time_limit.limited(RENDERING_SECONDS, "rendering it"):
            yield
    except Exception as error:  # a template divides, overflows and calls itself as any program does
        raise Refusal(f"{where}: the chat template does not take this conversation: {first_line(error)}") from error


def _with_calls(messages: Messages, kept: slice) -> Messages:
    """The messages with some of the calls of tools that each has."""
    changed = []
    for message in messages:
        if "tool_calls" in message:
            message = message | {"tool_calls": message["tool_calls"][kept]}
        changed.append(message)
    return changed


def _without_key(message: dict[str, Any], key: str) -> dict[str, Any]:
    """A message without a key, and without those that templates take for it."""
    removed = THOUGHTS if key in THOUGHTS else (key,)
    return {name: value for name, value in message.items() if name not in removed}


class ChatTemplate:
    """Renders conversations with the chat template of a tokenizer; with PLAIN, which the tokenizer then has, if it has
    none.

    train_on: "answers" or "all". warn: is given what was assumed. arguments: variables of the template, as
    `enable_thinking`. Raises Refusal for a tokenizer that does not say where its tokens lie in the text, or has only
    templates with other names than 'default'.

    unwritten: key of messages that the template writes nothing of -> messages that have it.
    """

    def __init__(self, tokens: Tokens, name: str, train_on: str, warn: Warn, arguments: dict[str, Any] | None = None):
        self.tokenizer, self.name, self.train_on = tokens.tokenizer, name, train_on
        self.arguments = arguments or {}
        if not self.tokenizer.is_fast:
            raise Refusal(
                f"data.tokenizer={name} does not say where its tokens lie in a text, so the answers of a conversation "
                "cannot be found. Give a tokenizer with a tokenizer.json."
            )
        if self.tokenizer.chat_template is None:
            self.tokenizer.chat_template = PLAIN
            if self.tokenizer("a")["input_ids"][:1] == [self.tokenizer.bos_token_id]:
                self.tokenizer.chat_template = "{{ bos_token }}" + PLAIN
            warn(f"data.tokenizer={name} has no chat template: a plain one is used ({PLAIN_SHOWN}).")
        try:
            template = self.tokenizer.get_chat_template()
        except ValueError as error:
            raise Refusal(f"data.tokenizer={name} has no chat template of the name 'default'.") from error
        if "strftime_now" in template:
            warn("the chat template may write the date of the day into the rows, which then differ from day to day.")
        known = {*self.tokenizer.get_added_vocab(), *self.tokenizer.all_special_tokens}
        self.ends = tuple(token for token in known if token.strip())
        self.warn: Warn | None = warn
        self.unwritten = Counter[str]()
        self._written: set[str] = set()  # keys of messages that the template was seen to write
        self._tried = Counter[str]()  # key -> rows in which it was looked for
        self._writes_answers = False  # whether it was seen to write one

    def render(self, talk: Talk, prompt: bool = False) -> str:
        """The text of a conversation; prompt: with the beginning of an answer behind it. Raises Refusal."""
        with _refusing(talk.where):
            return self.tokenizer.apply_chat_template(
                talk.messages,
                tools=talk.tools,
                tokenize=False,
                add_generation_prompt=prompt,
                **self.arguments | talk.arguments,
            )

    def rows(self, talk: Talk) -> tuple[list[Rendered], str]:
        """(rows of a conversation, its text): one row; one for each answer if the template changes earlier turns.

        Raises Refusal if the template does not take the conversation, or its answers cannot be found.
        """
        whole = self.render(talk)
        self._refuse_ignored(talk, whole)
        self._refuse_unwritten_answers(talk, whole)
        self._note_unwritten_keys(talk, whole)
        if self.train_on == "all":
            return [self._encoded(whole, [(0, len(whole))])], whole
        template = self.tokenizer.get_chat_template(tools=talk.tools)  # tool_use has its own, where there are several
        if MARKS_ANSWERS.search(template) and all(message.get("weight", 1) for message in talk.messages):
            return [self._marked(talk)], whole
        answers = self._answers(talk, whole)
        if not answers:
            return [], whole
        if all(whole.startswith(text) for text, _ in answers):
            return [self._encoded(whole, [span for _, span in answers])], whole
        return [self._encoded(text, [span]) for text, span in answers], whole

    def _refuse_ignored(self, talk: Talk, whole: str) -> None:
        """Raises Refusal if the template writes the same text without the tools of a conversation, or their calls."""
        without_results = [message for message in talk.messages if message["role"] != "tool"]
        changed = (
            ("tools", replace(talk, tools=None)),
            ("tool_calls", talk.of(_with_calls(talk.messages, slice(0)))),
            ("all of several tool_calls", talk.of(_with_calls(talk.messages, slice(1)))),
            ("all of several tool_calls", talk.of(_with_calls(talk.messages, slice(-1, None)))),
            ("the role tool", talk.of(without_results)),
        )
        for what, other in changed:
            if other != talk and self._writes(whole, other):
                raise Refusal(
                    f"{talk.where}: the chat template of data.tokenizer={self.name} does not write {what}. Take these "
                    "conversations out, or give a tokenizer whose template does."
                )

    def _writes(self, text: str, talk: Talk) -> bool:
        """Whether the template writes this text for a conversation; False where it does not take the conversation."""
        try:
            return self.render(talk) == text
        except Refusal:
            return False

    def _refuse_unwritten_answers(self, talk: Talk, whole: str) -> None:
        """Raises Refusal if the template writes nothing of an answer, as some of models of images do of plain texts."""
        answers = []
        for index, message in enumerate(talk.messages):
            if message["role"] == "assistant" and message["content"].strip() and message.get("weight") != 0:
                answers.append(index)
        if not answers:
            return
        last = talk.messages[answers[-1]]
        if self._writes_answers and last["content"].strip() in whole:
            return
        messages = list(talk.messages)
        messages[answers[-1]] = last | {"content": _another(last["content"])}
        if self._writes(whole, talk.of(messages)):
            raise Refusal(
                f"{talk.where}: the chat template of data.tokenizer={self.name} writes nothing of what the assistant "
                "says (it may expect contents as lists of parts, for images). Give a tokenizer whose template does."
            )
        self._writes_answers = True

    def _note_unwritten_keys(self, talk: Talk, whole: str) -> None:
        """Counts the keys of messages that the template writes nothing of."""
        keys = set().union(*talk.messages)
        for key in sorted(keys - OF_TURNS - self._written):
            having = [index for index, message in enumerate(talk.messages) if key in message]
            if self._tried[key] < TRIED_ROWS:
                self._tried[key] += 1
                until = talk.of(talk.messages[: having[-1] + 1])
                text = whole if until == talk else self.render(until)
                without = talk.of([_without_key(message, key) for message in until.messages])
                if not self._writes(text, without):
                    self._written.add(key)
                    del self.unwritten[key]
                    continue
            self.unwritten[key] += len(having)

    def _answers(self, talk: Talk, whole: str) -> list[tuple[str, Span]]:
        """For each answer the text up to its end, and where the answer lies in it."""
        answers = []
        for index, message in enumerate(talk.messages):
            if message["role"] != "assistant" or message.get("weight") == 0:
                continue
            if index == 0:
                raise Refusal(
                    f"{talk.where}: the first message is of the assistant, which answers nothing. Begin with one of "
                    "the user, or type data.train_on=all."
                )
            text = whole
            if index < len(talk.messages) - 1:
                text = self.render(talk.of(talk.messages[: index + 1]))
            begin = self._begin_of_answer(talk, index, text)
            answers.append((text, (begin, self._end_of_turn(text, begin))))
        return answers

    def _begin_of_answer(self, talk: Talk, index: int, text: str) -> int:
        """Where the answer of a message begins in a text that ends with it. Raises Refusal if that cannot be found."""
        before = talk.messages[:index]
        prompt = self.render(talk.of(before), prompt=True)
        begin = len(prompt)
        if not text.startswith(prompt):
            # How far the conversation goes in the prompt, and how far the beginning of any answer goes as the prompt.
            asked = len(os.path.commonprefix([prompt, self.render(talk.of(before))]))
            answer = talk.messages[index]
            other = talk.of([*before, answer | {"content": _another(answer["content"])}])
            begin = len(os.path.commonprefix([prompt, text, self.render(other)]))
            if begin < asked:
                begin = len(text)
        if begin >= len(text):
            raise Refusal(
                f"{talk.where}: the chat template of data.tokenizer={self.name} writes an answer otherwise than after "
                "its own prompt for one, so its tokens cannot be found. Type data.train_on=all, or give the "
                "template {% generation %} blocks around what the assistant says."
            )
        return begin

    def _end_of_turn(self, text: str, begin: int) -> int:
        """Where an answer ends that begins at `begin`: behind the token that ends the turn, at which a model stops."""
        end = len(text.rstrip())
        if end > begin and text.endswith(self.ends, begin, end):
            return end
        if self.warn is not None:
            self.warn(
                f"the chat template of data.tokenizer={self.name} ends answers with no token of their own, so the "
                "model does not learn to end answers."
            )
            self.warn = None
        return len(text)

    def _encoded(self, text: str, spans: list[Span]) -> Rendered:
        """The tokens of a text; those that lie in the spans, also in part, are trained on."""
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=False, verbose=False
        )
        ids = numpy.asarray(encoded["input_ids"], dtype=numpy.int64)
        places = numpy.asarray(encoded["offset_mapping"], dtype=numpy.int64).reshape(-1, 2)
        trained = numpy.zeros(len(ids), dtype=bool)
        for first, last in spans:
            trained |= (places[:, 0] < last) & (places[:, 1] > first)
        return Rendered(ids, numpy.where(trained, ids, IGNORE_INDEX))

    def _marked(self, talk: Talk) -> Rendered:
        """The tokens of a conversation with those that the template's `generation` blocks mark."""
        with _refusing(talk.where):
            encoded: Any = self.tokenizer.apply_chat_template(
                talk.messages,
                tools=talk.tools,
                return_dict=True,
                return_assistant_tokens_mask=True,
                tokenizer_kwargs={"split_special_tokens": False, "verbose": False},
                **self.arguments | talk.arguments,
            )
        ids = numpy.asarray(encoded["input_ids"], dtype=numpy.int64)
        is_answer = numpy.asarray(encoded["assistant_masks"]) == 1
        if is_answer.any():
            # For its warning. Line breaks may follow the token that ends the turn.
            self._end_of_turn(self.tokenizer.decode(ids[is_answer][-8:]), 0)
        return Rendered(ids, numpy.where(is_answer, ids, IGNORE_INDEX))
