"""Reads texts from files or from the hub, and tokenises them.

Texts are a datasets.Dataset with the columns `text`, `pair` (the second text, if the data set has pairs) and `label`
(if it has labels).
"""

from __future__ import annotations

import glob
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy
from datasets.exceptions import DatasetGenerationError
from transformers import AutoTokenizer

from recipes.errors import Refusal
from recipes.options import data_sources


def read(
    files: list[Path],
    columns: dict[str, str],
    source: str,
    advice: Callable[[str], str],
    keep_linebreaks: bool = False,
) -> datasets.Dataset:
    """The texts of files, without empty ones. Each line of a .txt file is a text.

    columns: name in the files -> text, pair or label. source: key and value of the option that names the files.
    advice(column): what to do if a column is missing or has no text. keep_linebreaks: for .txt files.
    Raises Refusal for files that cannot be read.
    """
    settings: dict[str, Any] = {}
    if files[0].suffix == ".txt":
        data_sources.refuse_without_labels(files, columns, source.partition("=")[2])
        columns, settings = {"text": "text"}, {"keep_linebreaks": keep_linebreaks}
    try:
        rows = datasets.load_dataset(
            data_sources.SUFFIXES[files[0].suffix],
            split="train",
            data_files=[glob.escape(str(file)) for file in files],
            **settings,
        )
    except (DatasetGenerationError, ValueError, OSError, StopIteration) as error:
        raise Refusal(f"{source} cannot be read: {_first_line(error.__cause__ or error)}") from error
    for column in columns:
        if column not in rows.column_names:
            raise Refusal(f"{source} has no column {column}: it has {', '.join(rows.column_names)}. {advice(column)}")
        kind = getattr(rows.features[column], "dtype", "lists")
        if columns[column] != "label" and "string" not in kind and len(rows):
            raise Refusal(f"{source}: the column {column} holds {kind}, not text. {advice(column)}")
    return _clean(rows, columns)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or "there is nothing in it").splitlines()[0]


def _clean(rows: Any, columns: dict[str, str]) -> datasets.Dataset:
    """The columns of `columns`, renamed, without rows that lack a value."""
    rows = rows.select_columns(list(columns)).rename_columns(columns)
    return rows.filter(lambda row: all(value if key != "label" else value is not None for key, value in row.items()))


# --- the hub -----------------------------------------------------------------------------------


def published(name: str, path: str | None) -> list[datasets.Dataset]:
    """The texts of each of SPLITS of a data set, from the hub, or from files with the same columns if `path` is given.

    Raises Refusal if they cannot be read.
    """
    known = data_sources.PUBLISHED[name]
    if path is not None:
        # In a .txt file of wikitext the line breaks are part of the text, as they are in the hub's rows.
        return [
            read(
                files,
                known.columns,
                f"data.path={path}",
                lambda _: data_sources.expected_files(name),
                keep_linebreaks=True,
            )
            for files in data_sources.splits(name, path)
        ]
    try:  # datasets 4 and later cannot run code of a repository
        parts = datasets.load_dataset(known.repository, known.config, split=list(data_sources.SPLITS))
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise Refusal(
            f"data={name} comes from the hub ({known.repository}), which did not return it: "
            f"{_first_line(error)}. Without a network, give files with data.path=: "
            f"{data_sources.expected_files(name)}"
        ) from error
    return [_clean(part, known.columns) for part in parts]


# --- tokens ------------------------------------------------------------------------------------


class Tokens:
    """Converts texts to token ids.

    name: bytes, the folder of a tokenizer, or a hub id. Raises Refusal if the tokenizer cannot be loaded.
    end: id at the end of a text. pad: id of padding. vocab: one more than the largest id. tokenizer: None for bytes.
    """

    def __init__(self, name: str):
        self.tokenizer: Any = None
        self.end, self.pad, self.vocab = 0, 0, data_sources.BYTE_VOCAB
        if name == "bytes":
            return
        folder = Path(name).expanduser()
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(
                str(folder) if folder.exists() else name, trust_remote_code=False
            )
        except (OSError, ValueError) as error:
            raise Refusal(
                f"data.tokenizer={name} cannot be loaded: {_first_line(error)} Give a "
                "tokenizer's folder, data.tokenizer=bytes, or a hub id where there is a network."
            ) from error
        self.end, self.pad = self._special("eos", "sep", "pad"), self._special("pad", "eos", "sep")
        self.vocab = len(self.tokenizer)

    def _special(self, *kinds: str) -> int:
        """The id of the first of these kinds of special token that the tokenizer has, or 0."""
        found = (getattr(self.tokenizer, f"{kind}_token_id") for kind in kinds)
        return next((number for number in found if number is not None), 0)

    def ids(self, text: str, special: bool = True) -> list[int]:
        """The ids of a text. special: with the special tokens that the tokenizer adds."""
        if self.tokenizer is None:
            return [byte + 1 for byte in text.encode()]
        return self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]

    def pair(self, first: str, second: str, longest: int) -> dict[str, list[int]]:
        """Two texts as one row of at most `longest` tokens; the longer text is truncated first.

        Returns input_ids, and token_type_ids if the tokenizer has them.
        """
        if self.tokenizer is not None:
            row = self.tokenizer(first, second, truncation="longest_first", max_length=longest, verbose=False)
            return {key: row[key] for key in ("input_ids", "token_type_ids") if key in row}
        one, two = self.ids(first), self.ids(second)
        room = longest - 1  # without the end id between the two
        one = one[: max(room - len(two), (room + 1) // 2)]
        return {"input_ids": [*one, self.end, *two[: room - len(one)]]}


def classified(
    texts: datasets.Dataset, tokens: Tokens, longest: int, names: list, with_types: bool
) -> datasets.Dataset:
    """One row per text or pair, truncated to `longest` tokens. Its label is the index of its name in `names`.

    with_types: keep token_type_ids.
    """
    index_of = {name: index for index, name in enumerate(names)}

    def row(text: dict) -> dict:
        inputs = (
            tokens.pair(text["text"], text["pair"], longest)
            if "pair" in text
            else {"input_ids": tokens.ids(text["text"])[:longest]}
        )
        if not with_types:
            inputs.pop("token_type_ids", None)
        return inputs | {"labels": index_of[text["label"]]}

    rows = texts.map(row, remove_columns=texts.column_names)
    return rows.filter(lambda row: len(row["input_ids"]) > 0).with_format("torch")


def label_names(*parts: datasets.Dataset | None) -> list:
    """The labels in the order of their classes: sorted, or the numbers from 0 on if all labels are numbers."""
    labels = {label for part in parts if part is not None for label in part.unique("label")}
    if all(type(label) is int and label >= 0 for label in labels):
        return list(range(max(labels, default=-1) + 1))
    return sorted(labels, key=str)


def stream(texts: datasets.Dataset, tokens: Tokens, one_text: bool) -> numpy.ndarray:
    """All texts concatenated, (N,) ids, each followed by the end id. one_text: they are lines of one text, without."""
    flat = array("q")
    for text in texts["text"]:
        ids = tokens.ids(text, special=not one_text)
        flat.extend(ids if one_text or ids and ids[-1] == tokens.end else [*ids, tokens.end])
    return numpy.frombuffer(flat, dtype=numpy.int64)
