"""Samples as a person reads them, with what is trained on marked."""

from __future__ import annotations

import itertools
from typing import Any

from recipes.data.collate import IGNORE_INDEX
from recipes.data.dataset import Data

BEGIN, END = ">>>", "<<<"


def samples(data: Data, count: int) -> str:
    """The first rows to train on as text: between BEGIN and END is what the loss looks at; of labelled texts all of it
    is read, and the label is named."""
    count = min(count, len(data.train))
    parts = []
    for index in range(count):
        row = data.train[index]
        ids, labels = row["input_ids"].tolist(), row["labels"]
        title = f"sample {index + 1} of {len(data.train):,}, {len(ids):,} tokens"
        if labels.dim() == 0:
            label = int(labels)
            name = data.names[label] if label < len(data.names) else str(label)
            parts.append(f"{title}, label {name}:\n{_text(data.tokenizer, ids)}")
            continue
        trained = [label != IGNORE_INDEX for label in labels.tolist()]
        trained[0] = False  # nothing predicts the first token
        title += f", {sum(trained):,} trained on (between {BEGIN} and {END})"
        parts.append(f"{title}:\n{_marked(data.tokenizer, ids, trained)}")
    return "\n\n".join(parts)


def _marked(tokenizer: Any, ids: list[int], trained: list[bool]) -> str:
    text = ""
    for is_trained, group in itertools.groupby(zip(ids, trained), key=lambda pair: pair[1]):
        piece = _text(tokenizer, [number for number, _ in group])
        text += f"{BEGIN}{piece}{END}" if is_trained else piece
    return text


def _text(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
