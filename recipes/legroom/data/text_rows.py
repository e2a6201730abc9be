"""Rows from texts: one per text or pair with a label, packed blocks for language modelling."""

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import datasets
import numpy

from legroom.config import Config
from legroom.data import labels as labels_module
from legroom.data import packing, rows
from legroom.data.bad_rows import SKIP
from legroom.data.labels import Classes
from legroom.data.text_data import Warn
from legroom.data.tokens import Tokens
from legroom.errors import Refusal
from legroom.options import data as data_options
from legroom.options import model as model_options
from legroom.options.task import OF_ROWS

Part = tuple[datasets.Dataset, int]  # rows, and how many there are without a bound
Built = tuple[datasets.Dataset, Part | None, list[str], Tokens]
"""Rows to train on, rows to evaluate on, names of the classes, and the tokens."""


def labelled(
    cfg: Config,
    task: str,
    texts: datasets.Dataset,
    held_out: datasets.Dataset | None,
    encoder: Tokens,
    head: Mapping[str, int] | None,
    warn: Warn,
) -> tuple[datasets.Dataset, Part | None, list[str]]:
    """(rows to train on, rows to evaluate on, names of the classes). Texts longer than data.seq_len are cut.

    head: see `labels.classes_of`.
    """
    data = cfg.data
    asked_classes = cfg.model.classes or 2
    parts = labels_module.alike([part for part in (texts, held_out) if part is not None])
    if task == "classification":
        parts = labels_module.without_unlabelled(parts, asked_classes, data.bad_rows == SKIP, warn)
    texts = parts[0]
    held_out = parts[1] if len(parts) > 1 else None
    classes = labels_module.of_task(task, texts, held_out, head, asked_classes, warn)
    with_types = model_options.takes_token_types(cfg)
    texts = texts.select(range(len(texts))[: data.samples])
    train, cut_texts = _labelled_rows(texts, encoder, data.seq_len, classes, with_types)
    if cut_texts:
        cut = f"{cut_texts:,} of {len(texts):,} texts"
        warn(f"{cut} to train on are longer than data.seq_len={data.seq_len} and are cut.")
    if len(train) and task == "classification":
        labels_module.refuse_one_class(train.with_format(None)["labels"][:], classes.names, "rows to train on")
    if held_out is None:
        return train, None, classes.names
    kept = held_out.select(_evaluated(cfg, len(held_out)))
    evaluated, _ = _labelled_rows(kept, encoder, data.seq_len, classes, with_types)
    return train, (evaluated, len(held_out)), classes.names


def check_ends(cfg: Config, parts: list[datasets.Dataset], last_id: int) -> None:
    """Raises Refusal unless each row has the token at which the model reads it, and all rows equally often."""
    model = (
        f"model.pretrained={cfg.model.pretrained} reads a row at its end token (eos_token_id {last_id} in config.json)"
    )
    counts_of_parts = []
    for part in parts:
        ids, ends = rows.flat(part, "input_ids")
        begins = numpy.concatenate([[0], ends[:-1]])
        counts_of_parts.append(numpy.add.reduceat(ids == last_id, begins, dtype=numpy.int64))
    counts = numpy.concatenate(counts_of_parts)
    without = int((counts == 0).sum())
    if without:
        raise Refusal(
            f"{model}, which {without:,} of {len(counts):,} rows have not: data.tokenizer={cfg.data.tokenizer} does "
            "not write it. Take the tokenizer that the weights were trained with: data.tokenizer=."
        )
    if counts.min() != counts.max():
        raise Refusal(
            f"{model}, and the rows of data={cfg.data.name} have {counts.min()} to {counts.max()} of it: some texts "
            "hold it themselves. Take it out of the texts."
        )


def _evaluated(cfg: Config, count: int) -> list[int]:
    """The rows to evaluate on: the first data.eval_samples, or eval.max_samples of all."""
    if cfg.data.eval_samples is not None:
        return list(range(min(cfg.data.eval_samples, count)))
    return rows.chosen(count, cfg.eval.max_samples, cfg.train.seed)


def _labelled_rows(
    texts: datasets.Dataset, encoder: Tokens, longest: int, classes: Classes, with_types: bool
) -> tuple[datasets.Dataset, int]:
    """One row per text or pair of at most `longest` tokens, and how many of them were cut. with_types: keep
    token_type_ids."""
    cut_texts = 0

    def tokenised() -> Iterator[dict]:
        nonlocal cut_texts
        for text in cast(Iterable[dict[str, Any]], texts):
            if "pair" in text:
                row, is_cut = encoder.pair(text["text"], text["pair"], longest)
            else:
                row, is_cut = encoder.row(text["text"], longest)
            if not with_types:
                row.pop("token_type_ids", None)
            if is_cut:
                cut_texts += 1
            if len(row["input_ids"]) > 0:
                yield row | {"labels": classes.of(text["label"])}

    return rows.ragged(tokenised()), cut_texts


def language_modelling(
    cfg: Config, texts: datasets.Dataset, held_out: datasets.Dataset | None, encoder: Tokens, one_text: bool
) -> tuple[datasets.Dataset, Part | None]:
    """(rows to train on, rows to evaluate on). one_text: the texts are the lines of one."""
    if cfg.data.packing:
        return _texts_apart(cfg, texts, held_out, encoder)
    if cfg.data.group_by_length:
        raise Refusal(data_options.even_rows(cfg))
    length = cfg.data.seq_len
    ids = _stream(texts, encoder, one_text)
    if cfg.data.samples is not None:
        ids = ids[: cfg.data.samples * length]
    train, _ = rows.windows(ids, length, length)
    if held_out is None:
        return train, None
    ids = _stream(held_out, encoder, one_text)
    most = cfg.eval.max_samples
    if cfg.data.eval_samples is not None:
        ids = ids[: cfg.data.eval_samples * length]
        most = None
    window, stride = data_options.window_and_stride(cfg)
    return train, rows.windows(ids, window, stride, most=most, seed=cfg.train.seed)


def _texts_apart(
    cfg: Config, texts: datasets.Dataset, held_out: datasets.Dataset | None, encoder: Tokens
) -> tuple[datasets.Dataset, Part | None]:
    """`language_modelling` with samples that begin with a text, and end with it or after data.seq_len tokens: packed to
    train on, alone to evaluate on."""
    length = cfg.data.seq_len

    def samples(part: datasets.Dataset) -> Iterator[dict[str, Any]]:
        for text in part["text"]:
            ids = _ended(text, encoder)
            for begin in range(0, len(ids) - 1, length):  # one token predicts nothing
                yield {"input_ids": ids[begin : begin + length], "labels": ids[begin : begin + length]}

    train = rows.ragged(itertools.islice(samples(texts), cfg.data.samples))
    if len(train):
        train = packing.packed(train, length)
    if held_out is None:
        return train, None
    evaluated = rows.ragged(samples(held_out))
    kept = rows.chosen(len(evaluated), cfg.eval.max_samples, cfg.train.seed)
    return train, (evaluated.select(kept), len(evaluated))


def _ended(text: str, encoder: Tokens) -> numpy.ndarray:
    """The ids of a text with the end id behind them, if the tokenizer has one, (T,)."""
    ids = numpy.asarray(encoder.ids(text), dtype=numpy.int64)
    if encoder.end is None or encoder.end in ids[-1:]:
        return ids
    return numpy.append(ids, encoder.end)


def _stream(texts: datasets.Dataset, encoder: Tokens, one_text: bool) -> numpy.ndarray:
    """All texts concatenated, (N,) ids, each followed by the end id. one_text: they are lines of one text, without."""
    flat = array("q")
    for text in texts["text"]:
        if one_text:
            ids = numpy.asarray(encoder.ids(text, special=False), dtype=numpy.int64)
        else:
            ids = _ended(text, encoder)
        flat.frombytes(ids.tobytes())
    return numpy.frombuffer(flat, dtype=numpy.int64)


def build(
    cfg: Config,
    task: str,
    texts: datasets.Dataset,
    held_out: datasets.Dataset | None,
    encoder: Tokens,
    head: Mapping[str, int] | None,
    warn: Warn,
    one_text: bool,
) -> Built:
    """The rows of texts for a task.

    Raises Refusal if there is nothing to train on.
    """
    if task == "masked_lm":
        encoder.need_mask(str(cfg.data.tokenizer))
    if encoder.end is None:
        warn(
            f"data.tokenizer={cfg.data.tokenizer} has no eos_token: no token is put behind texts, so where they end is "
            f"not learned, and token {encoder.pad} pads rows. Name one of its tokens so in its tokenizer_config.json."
        )
    if task in OF_ROWS:
        train, evaluated, names = labelled(cfg, task, texts, held_out, encoder, head, warn)
    else:
        train, evaluated = language_modelling(cfg, texts, held_out, encoder, one_text)
        names = []
    if len(train) == 0:
        raise Refusal(f"data.path={cfg.data.path} holds no text of two tokens or more.")
    return train, evaluated, names, encoder
