"""datafiles: texts from files or from the hub, and their tokens.

Whatever they come from, texts end up in a datasets.Dataset with the columns `text`, `pair` (a second
text, where the data set has pairs) and `label` (where it has labels).
"""

from __future__ import annotations

import glob
from array import array
from pathlib import Path

from recipes.errors import Refusal
from recipes.options import data_sources


def read(files: list[Path], columns: dict[str, str], source: str, advice, keep_linebreaks: bool = False):
    """The texts of files as a Dataset, without empty ones; a .txt file's lines are texts.

    columns: the files' names -> text, pair, label. source: the key and value that named the files.
    advice(column): what to do about a column that is not there or holds no text. Raises Refusal.
    """
    import datasets
    from datasets.exceptions import DatasetGenerationError

    settings = {}
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


def _clean(rows, columns: dict[str, str]):
    """The wanted columns under our names, and no row that lacks one of them."""
    rows = rows.select_columns(list(columns)).rename_columns(columns)
    return rows.filter(lambda row: all(value if key != "label" else value is not None for key, value in row.items()))


# --- the hub -----------------------------------------------------------------------------------


def published(name: str, path: str | None) -> list:
    """The texts of each of SPLITS, from the hub or from files of the same form. Raises Refusal."""
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
    import datasets
    from datasets.exceptions import DatasetGenerationError

    try:  # datasets 4 and later run no code of a repository, and have no switch that would let them
        parts = datasets.load_dataset(known.repository, known.config, split=list(data_sources.SPLITS))
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise Refusal(
            f"data={name} comes from the hub ({known.repository}), which did not give it: "
            f"{_first_line(error)}. Without a network, give files with data.path=: "
            f"{data_sources.expected_files(name)}"
        ) from error
    return [_clean(part, known.columns) for part in parts]


# --- tokens ------------------------------------------------------------------------------------


class Tokens:
    """Texts as token ids. name: bytes, a tokenizer's folder or a hub id; raises Refusal where it cannot be loaded.

    end: the id that ends a text; pad: the one that fills a batch; vocab: one more than the largest id;
    tokenizer: None for bytes.
    """

    def __init__(self, name: str):
        self.tokenizer, self.end, self.pad, self.vocab = None, 0, 0, data_sources.BYTE_VOCAB
        if name == "bytes":
            return
        from transformers import AutoTokenizer

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
        """The first of some special tokens that the tokenizer has, or 0."""
        found = (getattr(self.tokenizer, f"{kind}_token_id") for kind in kinds)
        return next((number for number in found if number is not None), 0)

    def ids(self, text: str, special: bool = True) -> list[int]:
        """One text. special: with what the tokenizer puts around a text."""
        if self.tokenizer is None:
            return [byte + 1 for byte in text.encode()]
        return self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]

    def pair(self, first: str, second: str, longest: int) -> dict[str, list[int]]:
        """Two texts as one row of at most `longest` tokens: the longer is cut first. input_ids, and token_type_ids
        where the tokenizer tells the two apart by them."""
        if self.tokenizer is not None:
            row = self.tokenizer(first, second, truncation="longest_first", max_length=longest, verbose=False)
            return {key: row[key] for key in ("input_ids", "token_type_ids") if key in row}
        one, two = self.ids(first), self.ids(second)
        room = longest - 1  # the end id stands between the two
        one = one[: max(room - len(two), (room + 1) // 2)]
        return {"input_ids": [*one, self.end, *two[: room - len(one)]]}


def classified(texts, tokens: Tokens, longest: int, names: list, with_types: bool):
    """One row a text or pair, cut to `longest` tokens; its label is the place of its name in `names`."""
    place = {name: index for index, name in enumerate(names)}

    def row(text: dict) -> dict:
        made = (
            tokens.pair(text["text"], text["pair"], longest)
            if "pair" in text
            else {"input_ids": tokens.ids(text["text"])[:longest]}
        )
        if not with_types:
            made.pop("token_type_ids", None)
        return made | {"labels": place[text["label"]]}

    rows = texts.map(row, remove_columns=texts.column_names)
    return rows.filter(lambda row: len(row["input_ids"]) > 0).with_format("torch")


def label_names(*parts) -> list:
    """The labels in order: the class of a label is its place here. Numbers from 0 up stand for themselves."""
    labels = {label for part in parts if part is not None for label in part.unique("label")}
    if all(type(label) is int and label >= 0 for label in labels):
        return list(range(max(labels, default=-1) + 1))
    return sorted(labels, key=str)


def stream(texts, tokens: Tokens, one_text: bool):
    """All texts one after another as (N,) ids: an end-of-text id after each, unless they are lines of one text."""
    import numpy

    flat = array("q")
    for text in texts["text"]:
        ids = tokens.ids(text, special=not one_text)
        flat.extend(ids if one_text or ids and ids[-1] == tokens.end else [*ids, tokens.end])
    return numpy.frombuffer(flat, dtype=numpy.int64)
