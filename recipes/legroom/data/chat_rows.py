"""Rows from conversations: token ids, with labels where the loss looks."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, cast

import datasets

from legroom.config import Config
from legroom.data import packing, rows
from legroom.data.bad_rows import BadRows
from legroom.data.chat_template import ChatTemplate, Rendered, Talk
from legroom.data.collate import IGNORE_INDEX
from legroom.data.text_data import Warn
from legroom.data.text_rows import Built
from legroom.data.tokens import Tokens
from legroom.errors import Refusal
from legroom.options import data_sources

Notes = dict[str, list[str]]  # what happened to conversations -> the places of these


def build(
    cfg: Config,
    talks: datasets.Dataset,
    held_out: datasets.Dataset | None,
    encoder: Tokens,
    warn: Warn,
    bad: BadRows,
) -> Built:
    """The rows of conversations.

    warn: is given what is assumed, cut or left out. bad: the rows that could not be read; is given those that the
    template does not take. Raises Refusal for them, unless they are left out, and if nothing is left to train on.
    """
    data = cfg.data
    template = ChatTemplate(encoder, str(data.tokenizer), str(data.train_on), warn, data.template_arguments)
    talks = talks.select(range(len(talks))[: data.samples])
    train = _rows(cfg, talks, template, "train on", warn, bad)
    evaluated = None
    if held_out is not None:
        evaluated = _rows(cfg, held_out, template, "evaluate on", warn, bad)
    left_out = bad.check()
    if left_out is not None:
        warn(left_out)
    if len(train) == 0:
        bad.check_all(f"data.path={cfg.data.path}")
        if _have_answers(talks):
            why = f"no answer has a token within data.seq_len={cfg.data.seq_len}. Type a larger data.seq_len, or"
        else:
            why = "no conversation has an answer, a message of the role assistant. Add some, or type"
        raise Refusal(f"data.path={cfg.data.path} leaves nothing to train on: {why} data.train_on=all.")
    if cfg.data.packing:
        train = packing.packed(train, cfg.data.seq_len)
    _say_unwritten(template, warn)
    if evaluated is None:
        return train, None, [], encoder
    kept = rows.chosen(len(evaluated), cfg.eval.max_samples, cfg.train.seed)
    return train, (evaluated.select(kept), len(evaluated)), [], encoder


def _have_answers(talks: datasets.Dataset) -> bool:
    for messages in talks["messages"]:
        if any(message["role"] == "assistant" for message in messages):
            return True
    return False


def _rows(
    cfg: Config, talks: datasets.Dataset, template: ChatTemplate, use: str, warn: Warn, bad: BadRows
) -> datasets.Dataset:
    """The rows of conversations, each of at most data.seq_len tokens, without those that have no token to train on."""
    notes: Notes = defaultdict(list)
    special_tokens = [re.escape(token) for token in template.tokenizer.all_special_tokens]
    special = re.compile("|".join(special_tokens) or r"(?!)")  # (?!) is in no text

    def tokenised() -> Iterator[dict[str, Any]]:
        for talk in cast(Iterable[dict[str, Any]], talks):
            place = talk["place"]
            messages = [_as_given(message) for message in talk["messages"]]
            tools = json.loads(talk["tools"] or "null")
            arguments = json.loads(talk["arguments"] or "{}")
            try:
                rendered, text = template.rows(Talk(messages, f"data={cfg.data.name}: {place}", tools, arguments))
            except Refusal as refusal:
                bad.add(place, str(refusal))
                continue
            _note_contents(messages, text, special, place, notes)
            if len(rendered) > 1:
                notes["become a row for each answer, because the chat template changes earlier turns"].append(place)
            if not rendered:
                notes["are left out: they have no answer"].append(place)
            if cfg.data.train_on == "all" and any(message.get("weight") == 0 for message in messages):
                notes["have an answer of weight 0, or in a prompt, which data.train_on=all learns too"].append(place)
            for row in rendered:
                cut = _cut(row, cfg.data.seq_len, place, notes)
                if cut is not None:
                    yield cut

    built = rows.ragged(tokenised())
    for what, places in notes.items():
        warn(f"{len(places):,} of {len(talks):,} conversations to {use} {what} (the first: {places[0]}).")
    return built


def _cut(row: Rendered, longest: int, place: str, notes: Notes) -> dict[str, Any] | None:
    """The end of a row, of at most `longest` tokens; None where nothing of it is trained on."""
    is_cut = len(row.ids) > longest
    labels = row.labels[-longest:]
    if not (labels[1:] != IGNORE_INDEX).any():  # the first token of a row is never predicted
        what = f"the end that fits into data.seq_len={longest}" if is_cut else "them"
        notes[f"are left out: nothing of {what} is trained on"].append(place)
        return None
    if is_cut:
        notes[f"have more than data.seq_len={longest} tokens: the end is kept"].append(place)
    return {"input_ids": row.ids[-longest:], "labels": labels}


def _say_unwritten(template: ChatTemplate, warn: Warn) -> None:
    """Warn of the keys of messages that the template writes nothing of."""
    if template.unwritten:
        keys = data_sources.listed(f"{key} ({count:,})" for key, count in template.unwritten.most_common())
        warn(f"the chat template of data.tokenizer={template.name} writes nothing of these keys of messages: {keys}.")


def _as_given(message: dict[str, Any]) -> dict[str, Any]:
    """A message as its row had it. The key `content` is there in any case: templates put it behind other texts."""
    return {"role": message["role"], "content": message["content"]} | json.loads(message["more"] or "{}")


def _note_contents(messages: list[dict[str, Any]], text: str, special: re.Pattern, place: str, notes: Notes) -> None:
    """Notes contents that the template has changed, and those that hold a special token."""
    if any(message["content"].strip() not in text for message in messages):
        notes["have a message that the chat template changes or leaves out"].append(place)
    if any(special.search(message["content"]) for message in messages):
        notes["have the text of a special token in a message, which becomes that token"].append(place)
