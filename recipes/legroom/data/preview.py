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
    """The first samples to train on as text: between BEGIN and END is what the loss looks at; of labelled texts all of
    it is read, and the label is named."""
    total = int(samples_in(data.train).sum())
    parts = []
    for number, (ids, labels) in enumerate(itertools.islice(_apart(data), count), 1):
        title = f"sample {number} of {total:,}, {len(ids):,} tokens"
        if data.task in OF_ROWS:
            parts.append(f"{title}, label {_label(data, labels)}:\n{_text(data.tokenizer, ids)}")
            continue
        trained = [label != IGNORE_INDEX for label in labels]
        trained[0] = False  # nothing predicts the first token
        title += f", {sum(trained):,} trained on (between {BEGIN} and {END})"
        parts.append(f"{title}:\n{_marked(data.tokenizer, ids, trained)}")
    return "\n\n".join(parts)


def _label(data: Data, label: Any) -> str:
    """A row's label by its names: a class, all that are true of several, or a number."""
    if data.task == "multi_label":
        return ", ".join(name for name, has in zip(data.names, label) if has) or "none"
    return data.names[label] if isinstance(label, int) and label < len(data.names) else str(label)


def _apart(data: Data) -> Iterator[tuple[list[int], Any]]:
    """(ids, labels) of each sample, also of those that are packed into one row."""
    for index in range(len(data.train)):
        tensors = data.train[index]
        if data.masking is not None:
            data.masking({key: value[None] for key, value in tensors.items()}, 0, [index])
        row = {key: value.tolist() for key, value in tensors.items()}
        ids, labels = row["input_ids"], row.get("labels")
        if labels is None:  # the answer to a question
            answer = range(row["start_positions"], row["end_positions"] + 1)
            labels = [0 if place in answer else IGNORE_INDEX for place in range(len(ids))]
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
