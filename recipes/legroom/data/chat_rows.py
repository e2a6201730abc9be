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
from legroom.data.chat_template import ChatTemplate, Talk
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
    talks = talks.select(range(len(talks))[: cfg.data.samples])
    train = _rows(cfg, talks, template, "train on", warn, bad)
    evaluated = None if held_out is None else _rows(cfg, held_out, template, "evaluate on", warn, bad)
    if (said := bad.check()) is not None:
        warn(said)
    if not len(train):
        bad.check_all(f"data.path={cfg.data.path}")
        why = f"no answer has a token within data.seq_len={cfg.data.seq_len}. Type a larger data.seq_len, or"
        if not any(message["role"] == "assistant" for talk in talks["messages"] for message in talk):
            why = "no conversation has an answer, a message of the role assistant. Add some, or type"
        raise Refusal(f"data.path={cfg.data.path} leaves nothing to train on: {why} data.train_on=all.")
    if cfg.data.packing:
        train = packing.packed(train, cfg.data.seq_len)
    _say_unwritten(template, warn)
    if evaluated is None:
        return train, None, [], encoder
    kept = rows.chosen(len(evaluated), cfg.eval.max_samples, cfg.train.seed)
    return train, (evaluated.select(kept), len(evaluated)), [], encoder


def _rows(
    cfg: Config, talks: datasets.Dataset, template: ChatTemplate, use: str, warn: Warn, bad: BadRows
) -> datasets.Dataset:
    """The rows of conversations, each of at most data.seq_len tokens, without those that have no token to train on."""
    notes: Notes = defaultdict(list)
    longest = cfg.data.seq_len
    special = re.compile("|".join(map(re.escape, template.tokenizer.all_special_tokens)) or r"(?!)")

    def made() -> Iterator[dict[str, Any]]:
        for talk in cast(Iterable[dict[str, Any]], talks):
            place, messages = talk["place"], [_as_given(message) for message in talk["messages"]]
            tools, arguments = (json.loads(talk[name] or "null") for name in ("tools", "arguments"))
            try:
                found, text = template.rows(Talk(messages, f"data={cfg.data.name}: {place}", tools, arguments or {}))
            except Refusal as refusal:
                bad.add(place, str(refusal))
                continue
            _note_contents(messages, text, special, place, notes)
            if len(found) > 1:
                notes["become a row for each answer, because the chat template changes earlier turns"].append(place)
            if not found:
                notes["are left out: they have no answer"].append(place)
            if cfg.data.train_on == "all" and any(message.get("weight") == 0 for message in messages):
                notes["have an answer of weight 0, or in a prompt, which data.train_on=all learns too"].append(place)
            for row in found:
                cut = len(row.ids) > longest
                ids, labels = row.ids[-longest:], row.labels[-longest:]
                if not (labels[1:] != IGNORE_INDEX).any():  # the first token of a row is never predicted
                    said = f"the end that fits into data.seq_len={longest}" if cut else "them"
                    notes[f"are left out: nothing of {said} is trained on"].append(place)
                    continue
                if cut:
                    notes[f"have more than data.seq_len={longest} tokens: the end is kept"].append(place)
                yield {"input_ids": ids, "labels": labels}

    built = rows.ragged(made())
    for what, places in notes.items():
        warn(f"{len(places):,} of {len(talks):,} conversations to {use} {what} (the first: {places[0]}).")
    return built


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
