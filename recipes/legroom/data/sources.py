"""Rows of tokens from the texts, conversations and questions of each option of the menu `data`."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import datasets

from legroom.config import Config
from legroom.data import chat_rows, conversations, documents, hub, overlap, questions, text_data, text_files, text_rows
from legroom.data import tokens as tokens_module
from legroom.data.bad_rows import BadRows
from legroom.data.text_data import Wanted, Warn
from legroom.errors import Refusal
from legroom.options import data_sources
from legroom.options.task import OF_ROWS, has_conversations

USUAL_COLUMNS = {"text": "text", "pair": None, "label": "label"}  # data.<key>_column where nothing is typed
DOCUMENTS = {"file": "each file", "blank_line": "each part between empty lines", "line": "each line"}


def build(cfg: Config, task: str, vocab: int, head: Mapping[str, int] | None, warn: Warn) -> tuple[Any, ...]:
    """`text_rows.Built`, and of questions their answers. The arguments are those of `dataset.build_data`.

    warn: is given what is assumed, cut or left out. Raises Refusal for data that cannot be used.
    """
    published = cfg.data.kind in data_sources.PUBLISHED
    bad = BadRows(cfg.data.bad_rows)
    texts, held_out = _published(cfg, task, warn) if published else _parts(cfg, task, warn, bad)
    if has_conversations(cfg):
        encoder = tokens_module.for_data(cfg, vocab, warn)
        return chat_rows.build(cfg, texts, held_out, encoder, warn, bad)
    left_out = bad.check()
    if left_out is not None:
        warn(left_out)
    encoder = tokens_module.for_data(cfg, vocab, warn)
    if task == "question_answering":
        return questions.build(cfg, texts, held_out, encoder, warn)
    one_text = published and task == "language_modelling"  # the rows of wikitext are its lines
    return text_rows.build(cfg, task, texts, held_out, encoder, head, warn, one_text)


def _published(cfg: Config, task: str, warn: Warn) -> list[datasets.Dataset]:
    """The texts of a data set of the hub, or of files with the same columns: to train on, and to evaluate on."""
    # In a .txt file of wikitext the line breaks are part of the text, as they are in the hub's rows.
    texts = text_data.published(cfg.data.kind, cfg.data.path, _format(cfg, "line_break"), warn)
    if task != "language_modelling":
        overlap.warn_of_overlap(texts[0], texts[1], False, warn)
    return texts


def _read(cfg: Config, task: str, key: str, warn: Warn, bad: BadRows) -> tuple[datasets.Dataset, bool]:
    """(the rows of the files or of the split that data.<key> names, whether they are documents of plain text)."""
    files: list[Path] = []
    kind = ""
    rows = None
    if cfg.data.kind == "hub":
        rows, source = hub.split(cfg, key)
    else:
        source = f"data.{key}={getattr(cfg.data, key)}"
        files = data_sources.find(getattr(cfg.data, key), f"data.{key}")
        kind = data_sources.kind(files[0])

    def say(text: str) -> None:
        warn(f"{source}: {text}")

    def placed(columns: Collection[str], instead: tuple[str, ...] = ()) -> text_files.Rows:
        if rows is not None:
            return hub.placed(rows, columns)
        form = dataclasses.replace(_format(cfg, instead=instead), bad=bad)
        return text_files.placed(files, list(columns), form, source, say)

    if has_conversations(cfg):
        columns = conversations.Columns(*_named(cfg, ("messages", "prompt", "completion")))
        instruction, _, output = conversations.ALPACA
        found = placed(columns.of_kind(kind), (instruction, output))
        return conversations.collect(found, columns, source, say, bad), False
    text_columns, advice = _columns(cfg, task)
    wanted = Wanted(text_columns, advice, source, say, task, bad)
    if task == "question_answering":
        return questions.collect(placed(questions.COLUMNS), source, say, bad), False
    if rows is not None:
        return hub.texts(rows, wanted), hub.is_plain(rows)
    return text_data.read(files, dataclasses.replace(_format(cfg), bad=bad), wanted), kind == ".txt"


def _columns(cfg: Config, task: str) -> tuple[dict[str, str], Callable[[str], str]]:
    """(name of a column -> text, pair or label, of those that the task needs; what to do about one that is wrong)."""
    if task == "question_answering":
        read = []
    elif task in OF_ROWS:
        read = list(USUAL_COLUMNS)
    else:
        read = ["text"]
    for name, usual in USUAL_COLUMNS.items():
        column = getattr(cfg.data, f"{name}_column")
        if name not in read and column != usual:  # options.data does not know the task of pretrained weights
            raise Refusal(
                f"data.{name}_column={column} would be ignored: {cfg.model.name} is trained on {task}. Type "
                "data.task=classification, or another task that reads it, or leave it out."
            )
    columns = _named(cfg, read)
    return columns, lambda column: f"Name the right one with data.{columns[column]}_column=."


def _named(cfg: Config, names: Collection[str]) -> dict[str, str]:
    """Column -> name, of the keys data.<name>_column that are set. Raises Refusal if two name one column."""
    columns: dict[str, str] = {}
    for name in names:
        column = getattr(cfg.data, f"{name}_column")
        if not column:
            continue
        if column in columns:
            raise Refusal(
                f"data.{columns[column]}_column and data.{name}_column both name {column}: each needs its own column."
            )
        columns[column] = name
    return columns


def _parts(cfg: Config, task: str, warn: Warn, bad: BadRows) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """(what to train on, what to evaluate on)."""
    data = cfg.data
    key = "split" if data.kind == "hub" else "path"
    eval_key = f"eval_{key}"
    texts, is_plain = _read(cfg, task, key, warn, bad)
    held_out = None
    how_divided = ""
    if getattr(data, eval_key):
        held_out, _ = _read(cfg, task, eval_key, warn, bad)
    elif data.eval_fraction and is_plain:
        texts, held_out, how_divided = documents.held_out(
            texts, data.documents or "file", data.eval_fraction, shortest=data.seq_len
        )
    elif data.eval_fraction and len(texts) > 1:
        kept = min(math.ceil(data.eval_fraction * len(texts)), len(texts) - 1)  # at least one to train on
        split = texts.train_test_split(test_size=kept, seed=cfg.train.seed)
        texts, held_out = overlap.move_new_labels(split["train"], split["test"], warn)
    if is_plain:
        line = f"data.path={data.path}: {DOCUMENTS[data.documents or 'file']} is a document"
        if how_divided:
            line += f", and {how_divided}"
        line += "."
        if not data.documents:
            line += " Type data.documents=line or blank_line if a file holds several."
        warn(line)
    if held_out is None and data.eval_fraction and cfg.eval.enabled:
        warn(
            f"data.path={data.path} is one text, of which data.eval_fraction cannot keep any for the evaluation: there "
            f"is none. Give data.{eval_key}, or more text."
        )
    if held_out is not None:
        trained = texts
        if {"label", "messages", "question"}.intersection(texts.column_names):  # each row is a sample
            trained = texts.select(range(len(texts))[: data.samples])
        overlap.warn_of_overlap(trained, held_out, is_plain, warn)
    return texts, held_out


def _format(cfg: Config, documents: str | None = None, instead: tuple[str, ...] = ()) -> text_files.Format:
    """How the files of data.path are written. documents: of .txt files; None: data.documents."""
    documents = documents or cfg.data.documents or "file"
    return text_files.Format(cfg.data.encoding or "utf-8", cfg.data.separator, documents, instead)
