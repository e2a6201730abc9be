"""Builds the rows of the menu `data`: token ids with their labels, for training and for evaluation.

Shapes: T tokens. A row has `input_ids` (T,) and `labels`: () for classification, (T,) for language modelling, where
-100 marks tokens that the loss ignores.
"""

from __future__ import annotations

import itertools
import math
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy

from recipes.config import Config
from recipes.data import collate, text_data
from recipes.errors import Refusal
from recipes.options import data as data_options
from recipes.options import data_sources, parallelism
from recipes.options.data_sources import BYTE_VOCAB
from recipes.options.model_families import ENCODERS

DUMMY_LOW, DUMMY_HIGH = 100, 30_000  # range of random ids in the Hugging Face guide
EVAL_FILE_INTERVAL = 10  # data=source: every tenth file is in the evaluation split


@dataclass
class Data:
    """The rows of a data set, and how they become batches.

    train, eval: datasets.Dataset in the torch format; eval is None without an evaluation split.
    collate: list of rows -> batch. vocab: one more than the largest possible token id.
    rank, ranks: of the parts into which every batch is split, this process has part `rank`.
    """

    task: str
    train: Any
    eval: Any
    collate: Callable
    vocab: int
    classes: int = 0
    pad_token_id: int = 0
    tokenizer: Any = None
    names: list = field(default_factory=list)  # of the classes; empty if unknown
    rank: int = 0
    ranks: int = 1


# --- building ----------------------------------------------------------------------------------


def build_data(cfg: Config, task: str, vocab: int) -> Data:
    """The rows of the chosen data set.

    task: "classification" or "language_modelling". vocab: of the model. Raises Refusal for data that cannot be used.
    """
    builders = {"dummy": _dummy, "source": _source, "text": _text, "mrpc": _published, "wikitext": _published}
    built = builders[cfg.data.name](cfg, task, vocab)
    built.rank, built.ranks = parallelism.data_share(cfg)
    if (cfg.eval.window or cfg.eval.stride) and (task == "classification" or built.eval is None):
        raise Refusal(
            "eval.window and eval.stride slide over the text of a language model's evaluation, and there is "
            "none here. Leave them out."
        )
    return built


def _samples(cfg: Config) -> int:
    """The number of rows to make, of data that has no end."""
    assert cfg.data.samples is not None, "options.data refuses null"
    return cfg.data.samples


def _dummy(cfg: Config, task: str, vocab: int) -> Data:
    """Random ids with random labels, as in the Hugging Face guide; with the ids as labels for a language model."""
    random = numpy.random.default_rng(cfg.train.seed)
    low, high = (DUMMY_LOW, min(DUMMY_HIGH, vocab)) if vocab > 2 * DUMMY_LOW else (0, vocab)
    classes = cfg.model.classes if task == "classification" else 0

    def rows(count: int) -> datasets.Dataset:
        ids = random.integers(low, high, (count, cfg.data.seq_len))
        return _dataset(ids, random.integers(0, classes, count) if classes else ids)

    count, held_out = _samples(cfg), cfg.data.eval_samples
    return Data(task, rows(count), rows(held_out) if held_out else None, collate.stack, high, classes)


def _source(cfg: Config, task: str, vocab: int) -> Data:
    """Blocks of bytes from the files of Python's standard library. Whole files are held out for the evaluation."""
    root, length = Path(sysconfig.get_paths()["stdlib"]), cfg.data.seq_len
    excluded = {"site-packages", "dist-packages", "test"}
    paths = sorted(p for p in root.rglob("*.py") if not excluded & set(p.relative_to(root).parts))
    if not paths:
        raise Refusal(f"data=source found no Python file in {root}. Choose data=text with data.path=.")

    def rows(files: list[Path], count: int, window: int, stride: int) -> datasets.Dataset:
        text = b"\0".join(path.read_bytes() for path in files)
        tokens = numpy.frombuffer(text, dtype=numpy.uint8).astype(numpy.int64) + 1
        tokens[tokens == 1] = 0  # a zero byte between files ends a text
        blocks = len(tokens) // length
        if count > blocks:
            raise Refusal(
                f"the standard library holds {blocks} sequences of data.seq_len={length}, fewer than the {count} that "
                f"are configured. Type data.samples={blocks} or a smaller data.seq_len."
            )
        starts = numpy.linspace(0, blocks - 1, count).astype(int) * length  # evenly over all files
        return windows(tokens, window, stride, [(start, start + length) for start in starts])

    train = rows([p for i, p in enumerate(paths) if i % EVAL_FILE_INTERVAL], _samples(cfg), length, length)
    held_out = (
        rows(paths[::EVAL_FILE_INTERVAL], cfg.data.eval_samples, *data_options.window_and_stride(cfg))
        if cfg.data.eval_samples
        else None
    )
    pad = (
        collate.stack
        if data_options.window_and_stride(cfg) == (length, length)
        else collate.Padding(1, length, 0, with_mask=False)
    )
    return Data(task, train, held_out, pad, BYTE_VOCAB)


def _text(cfg: Config, task: str, vocab: int) -> Data:
    """The files of data.path and data.eval_path."""
    data = cfg.data
    keys = {data.text_column: "data.text_column"}
    if task == "classification":
        keys[data.label_column] = "data.label_column"
    columns = {column: "text" if key == "data.text_column" else "label" for column, key in keys.items()}

    def read(key: str) -> datasets.Dataset:
        pattern = getattr(data, key)
        return text_data.read(
            data_sources.find(pattern, f"data.{key}"),
            columns,
            f"data.{key}={pattern}",
            lambda column: f"Name the right one with {keys[column]}=.",
        )

    texts, held_out = read("path"), None
    if data.eval_path:
        held_out = read("eval_path")
    elif data.eval_fraction and len(texts) > 1:
        kept = min(math.ceil(data.eval_fraction * len(texts)), len(texts) - 1)  # at least one to train on
        split = texts.train_test_split(test_size=kept, seed=cfg.train.seed)
        texts, held_out = split["train"], split["test"]
    return _from_texts(cfg, task, texts, held_out)


def _published(cfg: Config, task: str, vocab: int) -> Data:
    """A data set of the hub, or files with the same columns. The rows of wikitext are the lines of one long text."""
    texts, held_out = text_data.published(cfg.data.name, cfg.data.path)
    return _from_texts(cfg, task, texts, held_out, one_text=task == "language_modelling")


def _from_texts(
    cfg: Config, task: str, texts: datasets.Dataset, held_out: datasets.Dataset | None, one_text: bool = False
) -> Data:
    """Tokenised texts: one row per text or pair for classification, packed blocks for language modelling."""
    data, names = cfg.data, []
    tokens = text_data.Tokens(data.tokenizer)
    if task == "classification":
        names = text_data.label_names(texts, held_out)
        # Only encoders have token types; pretrained weights have their own tokenizer, which knows.
        with_types = bool(cfg.model.pretrained) or cfg.model.family in ENCODERS

    else:
        with_types = False

    def rows(part: datasets.Dataset, count: int | None, window: int, stride: int) -> datasets.Dataset:
        if task == "classification":
            made = text_data.classified(part, tokens, data.seq_len, names, with_types)
            return made if count is None else made.select(range(min(count, len(made))))
        ids = text_data.stream(part, tokens, one_text)
        return windows(ids if count is None else ids[: count * data.seq_len], window, stride)

    train = rows(texts, data.samples, data.seq_len, data.seq_len)
    if not len(train):
        raise Refusal(f"data.path={data.path} holds no text of two tokens or more.")
    held_out = rows(held_out, data.eval_samples, *data_options.window_and_stride(cfg)) if held_out is not None else None
    pad = collate.Padding(data.pad_to_multiple_of, data.seq_len, tokens.pad, with_mask=task == "classification")
    return Data(task, train, held_out or None, pad, tokens.vocab, len(names), tokens.pad, tokens.tokenizer, names)


def windows(
    tokens: numpy.ndarray, window: int, stride: int, spans: list[tuple[int, int]] | None = None
) -> datasets.Dataset:
    """Rows of a sliding window: each token of the spans has a label once, with the tokens before it as context.

    tokens: (N,) ids. window: tokens in a row, at most. stride: tokens by which the window moves.
    spans: (first, last) positions of tokens that get labels; None: all. Labels are IGNORE_INDEX for tokens that an
    earlier window has labelled, or that precede the span. The first token of a row is never predicted: without
    overlap (stride = window) that is one token per row, with overlap only the first of all.
    """
    ids, labels = [], []
    for first, last in spans or [(0, len(tokens))]:
        done = first
        for begin in itertools.count(max(0, first - (window - stride)), stride):
            end = min(begin + window, last)
            if end - begin < 2:  # one token predicts nothing
                break
            ids.append(tokens[begin:end])
            labels.append(ids[-1].copy())
            labels[-1][: done - begin] = collate.IGNORE_INDEX
            done = end
            if end == last:
                break
    return _dataset(ids, labels)


def _dataset(ids: Any, labels: Any) -> datasets.Dataset:
    """Rows of ids (T,), of any lengths, and labels () or (T,), in the torch format."""
    return datasets.Dataset.from_dict({"input_ids": ids, "labels": labels}).with_format("torch")
