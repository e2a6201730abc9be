"""Texts and conversations of each option of the menu `data`, as rows of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets

from legroom.config import Config
from legroom.data import chat_rows, conversations, documents, hub, overlap, questions, text_data, text_files, text_rows
from legroom.data.text_data import Warn
from legroom.options import data_sources
from legroom.options.task import OF_ROWS

Rows = tuple[Any, ...]  # text_rows.Built, and of questions their answers
Head = Mapping[str, int] | None
Read = Callable[[str], tuple[datasets.Dataset, bool]]
"""Name of a key -> (the rows that it names, whether they are the documents of plain text, in their order)."""
DOCUMENTS = {"file": "each file", "blank_line": "each part between empty lines", "line": "each line"}


def _text(cfg: Config, task: str, vocab: int, head: Head, warn: Warn) -> Rows:
    """The files of data.path and data.eval_path."""
    columns, advice = _columns(cfg, task)

    def read(key: str) -> tuple[datasets.Dataset, bool]:
        pattern = getattr(cfg.data, key)
        files = data_sources.find(pattern, f"data.{key}")
        if task == "question_answering":
            return _questions(cfg, files, f"data.{key}={pattern}", warn), False
        texts = text_data.read(files, columns, f"data.{key}={pattern}", advice, _format(cfg), warn, task)
        return texts, data_sources.kind(files[0]) == ".txt"

    texts, held_out = _parts(cfg, read, "eval_path", warn)
    if task == "question_answering":
        return questions.build(cfg, texts, held_out, vocab, warn)
    return text_rows.build(cfg, task, texts, held_out, vocab, head, warn)


def _chat(cfg: Config, task: str, vocab: int, head: Head, warn: Warn) -> Rows:
    """The conversations in the files of data.path and data.eval_path."""

    def read(key: str) -> tuple[datasets.Dataset, bool]:
        pattern = getattr(cfg.data, key)
        files = data_sources.find(pattern, f"data.{key}")
        return conversations.read(files, _chat_columns(cfg), f"data.{key}={pattern}", _format(cfg), warn), False

    talks, held_out = _parts(cfg, read, "eval_path", warn)
    return chat_rows.build(cfg, talks, held_out, vocab, warn)


def _hub(cfg: Config, task: str, vocab: int, head: Head, warn: Warn) -> Rows:
    """The splits data.split and data.eval_split of a data set of the hub, or of a folder."""
    if cfg.data.task == "chat":
        columns = _chat_columns(cfg)

        def read(key: str) -> tuple[datasets.Dataset, bool]:
            rows, source = hub.split(cfg, key)
            return conversations.collect(hub.placed(rows, columns.all()), columns, source, warn), False

        talks, held_out = _parts(cfg, read, "eval_split", warn)
        return chat_rows.build(cfg, talks, held_out, vocab, warn)
    columns, advice = _columns(cfg, task)

    def read_texts(key: str) -> tuple[datasets.Dataset, bool]:
        rows, source = hub.split(cfg, key)
        if task == "question_answering":
            return questions.collect(hub.placed(rows, questions.COLUMNS), source, warn), False
        return hub.texts(rows, columns, source, advice, warn, task), hub.is_plain(rows)

    texts, held_out = _parts(cfg, read_texts, "eval_split", warn)
    if task == "question_answering":
        return questions.build(cfg, texts, held_out, vocab, warn)
    return text_rows.build(cfg, task, texts, held_out, vocab, head, warn)


def _questions(cfg: Config, files: list[Path], source: str, warn: Warn) -> datasets.Dataset:
    """The questions in files."""
    found = (
        (f"{path.name}, {place}", row)
        for path in files
        for place, row in text_files.rows(path, list(questions.COLUMNS), _format(cfg), source, warn)
    )
    return questions.collect(found, source, warn)


def _published(cfg: Config, task: str, vocab: int, head: Head, warn: Warn) -> Rows:
    """A data set of the hub, or files with the same columns. The rows of wikitext are the lines of one long text."""
    # In a .txt file of wikitext the line breaks are part of the text, as they are in the hub's rows.
    form = _format(cfg, "line_break")
    texts, held_out = text_data.published(cfg.data.name, cfg.data.path, form, warn)
    one_text = task == "language_modelling"
    if not one_text:
        overlap.warn_of_overlap(texts, held_out, False, warn)
    return text_rows.build(cfg, task, texts, held_out, vocab, head, warn, one_text)


SOURCES = {"text": _text, "chat": _chat, "hub": _hub, "mrpc": _published, "wikitext": _published}


def _columns(cfg: Config, task: str) -> tuple[dict[str, str], Callable[[str], str]]:
    """(name of a column -> text, pair or label, of those that the task needs; what to do about one that is wrong)."""
    keys = {cfg.data.text_column: "text_column"}
    if task in OF_ROWS:
        keys |= {cfg.data.pair_column: "pair_column"} if cfg.data.pair_column else {}
        keys[cfg.data.label_column] = "label_column"
    columns = {column: key.removesuffix("_column") for column, key in keys.items()}
    return columns, lambda column: f"Name the right one with data.{keys[column]}=."


def _chat_columns(cfg: Config) -> conversations.Columns:
    data = cfg.data
    return conversations.Columns(data.messages_column, data.prompt_column, data.completion_column)


def _parts(cfg: Config, read: Read, eval_key: str, warn: Warn) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """(what to train on, what to evaluate on)."""
    data = cfg.data
    texts, is_plain = read("split" if eval_key == "eval_split" else "path")
    held_out, done = None, ""
    if getattr(data, eval_key):
        held_out, _ = read(eval_key)
    elif data.eval_fraction and is_plain:
        texts, held_out, done = documents.held_out(
            texts, data.documents or "file", data.eval_fraction, shortest=data.seq_len
        )
    elif data.eval_fraction and len(texts) > 1:
        kept = min(math.ceil(data.eval_fraction * len(texts)), len(texts) - 1)  # at least one to train on
        split = texts.train_test_split(test_size=kept, seed=cfg.train.seed)
        texts, held_out = overlap.move_new_labels(split["train"], split["test"], warn)
    if is_plain:
        kind = data.documents or "file"
        other = "" if data.documents else " Type data.documents=line or blank_line if a file holds several."
        warn(f"data.path={data.path}: {DOCUMENTS[kind]} is a document{done and f', and {done}'}.{other}")
    if held_out is None and data.eval_fraction and cfg.eval.enabled:
        warn(
            f"data.path={data.path} is one text, of which data.eval_fraction cannot keep any for the evaluation: there "
            f"is none. Give data.{eval_key}, or more text."
        )
    if held_out is not None:
        by_row = {"label", "messages", "question"} & set(texts.column_names)
        trained = texts.select(range(min(data.samples or len(texts), len(texts)))) if by_row else texts
        overlap.warn_of_overlap(trained, held_out, is_plain, warn)
    return texts, held_out


def _format(cfg: Config, documents: str | None = None) -> text_files.Format:
    """How the files of data.path are written. documents: of .txt files; None: data.documents."""
    return text_files.Format(
        cfg.data.encoding or "utf-8", cfg.data.separator, documents or cfg.data.documents or "file"
    )
