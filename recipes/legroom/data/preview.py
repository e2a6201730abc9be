"""Samples as a person reads them, with what is trained on marked."""

import itertools
from collections.abc import Iterator
from typing import Any

from legroom.data.collate import IGNORE_INDEX
from legroom.data.dataset import Data
from legroom.data.rows import samples_in
from legroom.options.task import OF_ROWS

BEGIN, END = ">>>", "<<<"


def samples(data: Data, count: int) -> str:
    """The first samples to train on as text.

    The tokens that the loss looks at stand between BEGIN and END. Of labelled texts the label is named instead.
    """
    total = int(samples_in(data.train).sum())
    parts = []
    for number, (ids, labels) in enumerate(itertools.islice(_samples_apart(data), count), 1):
        title = f"sample {number} of {total:,}, {len(ids):,} tokens"
        if data.task in OF_ROWS:
            title += f", label {_label(data, labels)}"
            text = _text(data.tokenizer, ids)
        else:
            trained = [label != IGNORE_INDEX for label in labels]
            trained[0] = False  # nothing predicts the first token
            title += f", {sum(trained):,} trained on (between {BEGIN} and {END})"
            text = _marked(data.tokenizer, ids, trained)
        parts.append(f"{title}:\n{text}")
    return "\n\n".join(parts)


def _label(data: Data, label: Any) -> str:
    """A row's label by its name: of a class, of all classes that the row has, or a number."""
    if data.task == "multi_label":
        names = [name for name, has in zip(data.names, label) if has]
        return ", ".join(names) or "none"
    if isinstance(label, int) and label < len(data.names):
        return data.names[label]
    return str(label)


def _samples_apart(data: Data) -> Iterator[tuple[list[int], Any]]:
    """(ids, labels) of each sample, also of those that are packed into one row."""
    for index in range(len(data.train)):
        tensors = data.train[index]
        if data.masking is not None:
            data.masking({key: value[None] for key, value in tensors.items()}, 0, [index])
        row = {key: value.tolist() for key, value in tensors.items()}
        ids = row["input_ids"]
        if "labels" in row:
            labels = row["labels"]
        else:  # of a question, whose answer is a span
            labels = [IGNORE_INDEX] * len(ids)
            for place in range(row["start_positions"], row["end_positions"] + 1):
                labels[place] = ids[place]
        if "position_ids" not in row:
            yield ids, labels
            continue
        starts = [place for place, position in enumerate(row["position_ids"]) if position == 0]
        for begin, end in itertools.pairwise([*starts, len(ids)]):
            yield ids[begin:end], labels[begin:end]


def _marked(tokenizer: Any, ids: list[int], trained: list[bool]) -> str:
    text = ""
    for is_trained, group in itertools.groupby(zip(ids, trained), key=lambda pair: pair[1]):
        piece = _text(tokenizer, [number for number, _ in group])
        text += f"{BEGIN}{piece}{END}" if is_trained else piece
    return text


def _text(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
