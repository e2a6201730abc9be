"""data: rows of token ids with their labels, and the batches that both recipes train on.

Shapes: B batch, T tokens. A row has `input_ids` (T,) and `labels`: () for classification,
(T,) for language modelling, where -100 marks what the loss leaves out.
"""

from __future__ import annotations

import itertools
import math
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.data import collate, text_data
from recipes.errors import Refusal
from recipes.options import data as data_options
from recipes.options import data_sources, parallelism
from recipes.options.data_sources import BYTE_VOCAB

DUMMY_LOW, DUMMY_HIGH = 100, 30_000  # the guide's range of random ids


@dataclass
class Data:
    """What there is to train and evaluate on. `vocab`: one more than the largest id it can hold.

    rank, ranks: which part of every batch is this process's, and of how many.
    """

    task: str
    train: Any
    eval: Any
    collate: Callable
    vocab: int
    classes: int = 0
    pad_token_id: int = 0
    tokenizer: Any = None
    names: list = field(default_factory=list)  # of the classes, where they have any
    rank: int = 0
    ranks: int = 1


# --- building ----------------------------------------------------------------------------------


def build_data(cfg, task: str, vocab: int) -> Data:
    """The rows of the chosen data set. vocab: the model's. Raises Refusal for data that cannot be used."""
    kind = {"dummy": _dummy, "source": _source, "text": _text, "mrpc": _published, "wikitext": _published}
    built = kind[cfg.data.name](cfg, task, vocab)
    built.rank, built.ranks = parallelism.data_share(cfg)
    if (cfg.eval.window or cfg.eval.stride) and (task == "classification" or built.eval is None):
        raise Refusal(
            "eval.window and eval.stride slide over the text of a language model's evaluation, and there is "
            "none here. Leave them out."
        )
    return built


def _dummy(cfg, task: str, vocab: int) -> Data:
    """The guide's workload: random ids, and a random label or the ids themselves."""
    import numpy

    random = numpy.random.default_rng(cfg.train.seed)
    low, high = (DUMMY_LOW, min(DUMMY_HIGH, vocab)) if vocab > 2 * DUMMY_LOW else (0, vocab)
    classes = cfg.model.classes if task == "classification" else 0

    def rows(count):
        ids = random.integers(low, high, (count, cfg.data.seq_len))
        return _dataset(ids, random.integers(0, classes, count) if classes else ids)

    count = cfg.data.eval_samples
    return Data(task, rows(cfg.data.samples), rows(count) if count else None, collate.stack, high, classes)


def _source(cfg, task: str, vocab: int) -> Data:
    """Blocks of bytes from the interpreter's own library. Files, not blocks, are split for evaluation."""
    import numpy

    root, length = Path(sysconfig.get_paths()["stdlib"]), cfg.data.seq_len
    others = {"site-packages", "dist-packages", "test"}
    paths = sorted(p for p in root.rglob("*.py") if not others & set(p.relative_to(root).parts))
    if not paths:
        raise Refusal(f"data=source found no Python file in {root}. Choose data=text with data.path=.")

    def rows(files, count, window, stride):
        text = b"\0".join(path.read_bytes() for path in files)
        tokens = numpy.frombuffer(text, dtype=numpy.uint8).astype(numpy.int64) + 1
        tokens[tokens == 1] = 0  # the zero byte between files is the end of a text
        blocks = len(tokens) // length
        if count > blocks:
            raise Refusal(
                f"the library here holds {blocks} sequences of data.seq_len={length}, and {count} "
                f"were asked for. Type data.samples={blocks} or a smaller data.seq_len."
            )
        starts = numpy.linspace(0, blocks - 1, count).astype(int) * length  # spread over the whole library
        return windows(tokens, window, stride, [(start, start + length) for start in starts])

    every = 10  # each tenth file is kept for the evaluation
    train = rows([p for i, p in enumerate(paths) if i % every], cfg.data.samples, length, length)
    held_out = (
        rows(paths[::every], cfg.data.eval_samples, *data_options.window_and_stride(cfg))
        if cfg.data.eval_samples
        else None
    )
    pad = (
        collate.stack
        if data_options.window_and_stride(cfg) == (length, length)
        else collate.Padding(1, length, 0, with_mask=False)
    )
    return Data(task, train, held_out, pad, BYTE_VOCAB)


def _text(cfg, task: str, vocab: int) -> Data:
    """The user's files."""
    data = cfg.data
    keys = {data.text_column: "data.text_column"}
    if task == "classification":
        keys[data.label_column] = "data.label_column"
    columns = {column: "text" if key == "data.text_column" else "label" for column, key in keys.items()}

    def read(key):
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
        kept = min(math.ceil(data.eval_fraction * len(texts)), len(texts) - 1)  # one is left to train on
        split = texts.train_test_split(test_size=kept, seed=cfg.train.seed)
        texts, held_out = split["train"], split["test"]
    return _from_texts(cfg, task, texts, held_out)


def _published(cfg, task: str, vocab: int) -> Data:
    """A data set of the hub, or files of the same form. The rows of wikitext are the lines of one long text."""
    texts, held_out = text_data.published(cfg.data.name, cfg.data.path)
    return _from_texts(cfg, task, texts, held_out, one_text=task == "language_modelling")


def _from_texts(cfg, task: str, texts, held_out, one_text: bool = False) -> Data:
    """Tokenised: one row a text or pair (classification) or packed blocks (language modelling)."""
    from recipes.options.model_families import ENCODERS

    data, names = cfg.data, []
    tokens = text_data.Tokens(data.tokenizer)
    if task == "classification":
        names = text_data.label_names(texts, held_out)
        # Only encoders tell the two texts of a pair apart by types; trained weights come with their own tokenizer.
        with_types = bool(cfg.model.pretrained) or cfg.model.family in ENCODERS

        def rows(part, count, *_):
            made = text_data.classified(part, tokens, data.seq_len, names, with_types)
            return made if count is None else made.select(range(min(count, len(made))))
    else:

        def rows(part, count, window, stride):
            ids = text_data.stream(part, tokens, one_text)
            return windows(ids if count is None else ids[: count * data.seq_len], window, stride)

    train = rows(texts, data.samples, data.seq_len, data.seq_len)
    if not len(train):
        raise Refusal(f"data.path={data.path} holds no text of two tokens or more.")
    held_out = rows(held_out, data.eval_samples, *data_options.window_and_stride(cfg)) if held_out is not None else None
    pad = collate.Padding(data.pad_to_multiple_of, data.seq_len, tokens.pad, with_mask=task == "classification")
    return Data(task, train, held_out or None, pad, tokens.vocab, len(names), tokens.pad, tokens.tokenizer, names)


def windows(tokens, window: int, stride: int, spans=None):
    """Rows that score each token of the spans once, with as much context before it as the windows hold.

    tokens: (N,) ids. spans: (first, last) places of what is to be scored; None: all of it.
    A window of at most `window` tokens moves on by `stride`. The labels of what an earlier window has scored, or
    of what stands before the span, are IGNORED. A row's first token has nothing to be predicted from: without
    overlap (stride = window) those stay unscored, with overlap only the very first of all tokens.
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


def _dataset(ids, labels):
    """Rows of ids (T,), of any lengths, and labels () or (T,), as a datasets.Dataset in the torch format."""
    import datasets

    return datasets.Dataset.from_dict({"input_ids": ids, "labels": labels}).with_format("torch")
