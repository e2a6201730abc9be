"""data: rows of token ids with their labels, and the batches that both recipes train on.

Shapes: B batch, T tokens. A row has `input_ids` (T,) and `labels`: () for classification,
(T,) for language modelling, where -100 marks what the loss leaves out.
"""

from __future__ import annotations

import glob
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from recipes import machine
from recipes.refusal import Refusal

IGNORED = -100  # the label that PyTorch's cross entropy leaves out
BYTE_VOCAB = 257  # token 0 ends a text and pads a batch; byte b is token b + 1
DUMMY_LOW, DUMMY_HIGH = 100, 30_000  # the guide's range of random ids
SUFFIXES = {".txt": "text", ".jsonl": "json", ".csv": "csv"}  # suffix -> the loader in datasets


@dataclass
class Data:
    """What there is to train and evaluate on. `vocab`: one more than the largest id it can hold."""

    task: str
    train: Any
    eval: Any
    collate: Callable
    vocab: int
    classes: int = 0
    pad_token_id: int = 0
    tokenizer: Any = None


# --- checks and arguments -----------------------------------------------------------------------


def problems(cfg) -> list[str]:
    """Files that are not there, and vocabularies too small for bytes."""
    data, found = cfg.data, []
    if not cfg.model.pretrained and cfg.model.vocab < BYTE_VOCAB and (data.name == "source" or data.tokenizer == "bytes"):
        found.append(f"model.vocab={cfg.model.vocab} is too small for bytes, which need {BYTE_VOCAB}. "
                     "Type model.vocab=512.")
    if data.name != "text":
        return found
    if data.path is None:
        return found + ["data=text needs data.path=: a file, a folder or a pattern of .txt, .jsonl or .csv files."]
    for key in ("path", "eval_path"):
        value = getattr(data, key)
        if value is not None:
            try:
                _files(value, f"data.{key}")
            except Refusal as refusal:
                found.append(str(refusal))
    if not found and data.task == "classification" and _files(data.path, "data.path")[0].suffix == ".txt":
        found.append("data.task=classification needs labels, and a .txt file has none. Give a .jsonl or .csv file "
                     f"with the columns {data.text_column} and {data.label_column}.")
    return found


def warnings(cfg) -> list[str]:
    """Batches and lengths that matrix units do not like: neither a multiple of 8 nor 1, 2 or 4."""
    sizes = {"batch.per_device": cfg.batch.per_device, "data.seq_len": cfg.data.seq_len}
    odd = [f"{key}={value}" for key, value in sizes.items() if value % 8 and value not in (1, 2, 4)]
    return [f"{', '.join(odd)}: not a multiple of 8, which leaves part of a GPU's matrix units idle."] if odd else []


def arguments(cfg) -> dict:
    """Entries for TrainingArguments."""
    return {
        "dataloader_pin_memory": cfg.data.pin_memory and machine.device(cfg) == "cuda",
        "dataloader_num_workers": cfg.data.workers,
        "dataloader_persistent_workers": cfg.data.workers > 0,
        "accelerator_config": {"non_blocking": machine.device(cfg) == "cuda"},
    }


# --- building ----------------------------------------------------------------------------------


def build(cfg, task: str, vocab: int) -> Data:
    """The rows of the chosen data set. vocab: the model's. Raises Refusal for files that cannot be used."""
    return {"dummy": _dummy, "source": _source, "text": _text}[cfg.data.name](cfg, task, vocab)


def _dummy(cfg, task: str, vocab: int) -> Data:
    """The guide's workload: random ids, and a random label or the ids themselves."""
    import numpy

    random = numpy.random.default_rng(cfg.train.seed)
    low, high = (DUMMY_LOW, min(DUMMY_HIGH, vocab)) if vocab > 2 * DUMMY_LOW else (0, vocab)
    classes = cfg.model.classes if task == "classification" else 0

    def rows(count):
        ids = random.integers(low, high, (count, cfg.data.seq_len))
        return _dataset(ids, random.integers(0, classes, count) if classes else ids)

    train = rows(cfg.data.samples)
    held_out = rows(cfg.data.eval_samples) if cfg.data.eval_samples else None
    return Data(task, train, held_out, stack, high, classes)


def _source(cfg, task: str, vocab: int) -> Data:
    """Blocks of bytes from the interpreter's own library. Files, not blocks, are split for evaluation."""
    import numpy

    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(p for p in root.rglob("*.py") if not {"site-packages", "dist-packages", "test"} & set(p.parts))
    if not paths:
        raise Refusal(f"data=source found no Python file in {root}. Choose data=text with data.path=.")

    def rows(files, count):
        text = b"\0".join(path.read_bytes() for path in files)
        tokens = numpy.frombuffer(text, dtype=numpy.uint8).astype(numpy.int64) + 1
        tokens[tokens == 1] = 0  # the zero byte between files is the end of a text
        blocks = len(tokens) // cfg.data.seq_len
        if count > blocks:
            raise Refusal(f"the library here holds {blocks} sequences of data.seq_len={cfg.data.seq_len}, and {count} "
                          f"were asked for. Type data.samples={blocks} or a smaller data.seq_len.")
        ids = tokens[: blocks * cfg.data.seq_len].reshape(blocks, -1)
        ids = ids[numpy.linspace(0, blocks - 1, count).astype(int)]  # spread over the whole library
        return _dataset(ids, ids)

    every = 10  # each tenth file is kept for the evaluation
    train = rows([p for i, p in enumerate(paths) if i % every], cfg.data.samples)
    held_out = rows(paths[::every], cfg.data.eval_samples) if cfg.data.eval_samples else None
    return Data(task, train, held_out, stack, BYTE_VOCAB)


def _text(cfg, task: str, vocab: int) -> Data:
    """The user's files, tokenised: one row a text (classification) or packed blocks (language modelling)."""
    data = cfg.data
    encode, end, size, tokenizer = _tokenizer(data.tokenizer)
    texts = _read(data, _files(data.path, "data.path"), task)
    if data.eval_path:
        held_out = _read(data, _files(data.eval_path, "data.eval_path"), task)
    elif data.eval_fraction and len(texts) > 1:
        split = texts.train_test_split(test_size=data.eval_fraction, seed=cfg.train.seed)
        texts, held_out = split["train"], split["test"]
    else:
        held_out = None
    if task == "classification":
        names = _labels(texts, held_out)
        rows = lambda part: _classified(part, encode, data.seq_len, names)  # noqa: E731
    else:
        names = []
        rows = lambda part: _packed(part, encode, end, data.seq_len)  # noqa: E731
    train = rows(texts)
    if data.samples is not None:
        train = train.select(range(min(data.samples, len(train))))
    if not len(train):
        raise Refusal(f"data.path={data.path} holds no text of two tokens or more.")
    held_out = rows(held_out) if held_out is not None else None
    pad = Padding(data.pad_to_multiple_of, data.seq_len, end, with_mask=task == "classification")
    return Data(task, train, held_out if held_out is not None and len(held_out) else None, pad, size,
                len(names), end, tokenizer)


def _dataset(ids, labels):
    """Arrays (N, T) and (N,) or (N, T) as a datasets.Dataset in the torch format."""
    import datasets

    return datasets.Dataset.from_dict({"input_ids": ids, "labels": labels}).with_format("torch")


def _files(pattern: str, key: str) -> list[Path]:
    """The files that a path, a folder or a pattern names; all of one kind."""
    path = Path(pattern).expanduser()
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)
    elif path.exists():
        found = [path]
    else:
        found = sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not found:
        raise Refusal(f"{key}={pattern}: " + ("the folder holds no .txt, .jsonl or .csv file." if path.is_dir()
                                              else "there is no such file or folder."))
    kinds = {p.suffix for p in found}
    if len(kinds) > 1 or kinds - set(SUFFIXES):
        raise Refusal(f"{key}={pattern}: the files are {', '.join(sorted(kinds))}; give one kind out of "
                      ".txt, .jsonl and .csv.")
    return found


def _read(data, files: list[Path], task: str):
    """The texts, and their labels where the task has them, as a datasets.Dataset. A .txt file's lines are texts."""
    import datasets
    from datasets.exceptions import DatasetGenerationError

    wanted = [data.text_column] + ([data.label_column] if task == "classification" else [])
    if files[0].suffix == ".txt":
        if task == "classification":
            raise Refusal(f"data.path={data.path} has no labels. Give a .jsonl or .csv file with the columns "
                          f"{data.text_column} and {data.label_column}.")
        wanted = ["text"]
    try:
        rows = datasets.load_dataset(SUFFIXES[files[0].suffix], data_files=[str(f) for f in files], split="train")
    except (DatasetGenerationError, ValueError, OSError) as error:
        cause = error.__cause__ or error
        raise Refusal(f"data.path={data.path} cannot be read: {str(cause).strip().splitlines()[0]}") from error
    for column, key in zip(wanted, ("data.text_column", "data.label_column")):
        if column not in rows.column_names:
            raise Refusal(f"data.path={data.path} has no column {column}: it has {', '.join(rows.column_names)}. "
                          f"Name the right one with {key}=.")
    rows = rows.select_columns(wanted).rename_columns(dict(zip(wanted, ("text", "label"))))
    return rows.filter(lambda row: bool(row["text"]) and row.get("label", 0) is not None)


def _tokenizer(name: str):
    """(encode, end-of-text id, vocabulary size, tokenizer or None) of `bytes`, a folder or a hub id."""
    if name == "bytes":
        return lambda text: [b + 1 for b in text.encode()], 0, BYTE_VOCAB, None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(Path(name).expanduser()) if Path(name).expanduser().exists()
                                                  else name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise Refusal(f"data.tokenizer={name} cannot be loaded: {str(error).strip().splitlines()[0]} Give a "
                      "tokenizer's folder, data.tokenizer=bytes, or a hub id where there is a network.") from error
    ends = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.sep_token_id, 0)
    end = next(i for i in ends if i is not None)
    return lambda text: tokenizer(text, verbose=False)["input_ids"], end, len(tokenizer), tokenizer


def _labels(*parts) -> list:
    """The distinct labels over all parts, in order: the class of a label is its place here."""
    return sorted({label for part in parts if part is not None for label in part.unique("label")}, key=str)


def _classified(texts, encode, seq_len: int, names: list):
    """One row a text, cut to T tokens."""
    place = {name: index for index, name in enumerate(names)}
    rows = texts.map(lambda row: {"input_ids": encode(row["text"])[:seq_len], "labels": place[row["label"]]},
                     remove_columns=texts.column_names)
    return rows.filter(lambda row: len(row["input_ids"]) > 0).with_format("torch")


def _packed(texts, encode, end: int, seq_len: int):
    """All texts one after another, an end-of-text id after each, cut into blocks of T; the last may be short."""

    from array import array

    import datasets
    import numpy

    tokens = array("q")
    for text in texts["text"]:
        ids = encode(text)
        tokens.extend(ids if ids and ids[-1] == end else [*ids, end])
    flat = numpy.frombuffer(tokens, dtype=numpy.int64)
    whole = len(flat) // seq_len * seq_len
    blocks = flat[:whole].reshape(-1, seq_len)
    rest = flat[whole:][None]
    parts = [part for part in (blocks, rest) if len(part) and part.shape[1] > 1]  # one token predicts nothing
    if not parts:
        return _dataset([], [])
    return datasets.concatenate_datasets([_dataset(part, part) for part in parts])


# --- batches -----------------------------------------------------------------------------------


def stack(rows: list[dict]) -> dict:
    """Rows of one length as a batch: input_ids (B, T), labels (B,) or (B, T)."""
    import torch

    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


@dataclass
class Padding:
    """Rows of different lengths as a batch, T rounded up to a multiple but not past the longest allowed."""

    multiple: int
    longest: int
    pad_token_id: int
    with_mask: bool  # a causal model never looks to the right, so padding there needs no mask

    def __call__(self, rows: list[dict]) -> dict:
        import torch
        from torch.nn.functional import pad

        length = max(len(row["input_ids"]) for row in rows)
        length = max(length, min(-(-length // self.multiple) * self.multiple, self.longest))
        batch = {"input_ids": torch.stack([pad(row["input_ids"], (0, length - len(row["input_ids"])),
                                               value=self.pad_token_id) for row in rows])}
        if self.with_mask:
            lengths = torch.tensor([len(row["input_ids"]) for row in rows])
            batch["attention_mask"] = (torch.arange(length) < lengths[:, None]).long()
        batch["labels"] = torch.stack([
            row["labels"] if row["labels"].dim() == 0
            else pad(row["labels"], (0, length - len(row["labels"])), value=IGNORED) for row in rows])
        return batch


def loader(rows, collate, args, batch: int, shuffle: bool):
    """A DataLoader, the same for both recipes: same order, same seeds, same workers.

    args: TrainingArguments. The generator decides the order and the workers' seeds, so that
    nothing draws from the random numbers that dropout uses.
    """
    import torch

    generator = torch.Generator().manual_seed(args.data_seed)
    return torch.utils.data.DataLoader(
        rows, batch_size=batch, shuffle=shuffle, generator=generator, collate_fn=collate,
        num_workers=args.dataloader_num_workers, persistent_workers=args.dataloader_persistent_workers and shuffle,
        pin_memory=args.dataloader_pin_memory)
