"""How good predictions are, beside their loss. Shapes: B rows, C classes."""

import math
import re
import string
from collections import Counter
from typing import Any

from torch import Tensor

from legroom.records.record import LARGEST_EXPONENT, Evaluation

SUMS = {"classification": 1, "multi_label": 4, "regression": 5}  # task -> how many numbers `sums` returns


def sums(task: str, logits: Tensor, labels: Tensor) -> list[Tensor]:
    """What the scores are made of, of one batch: () each, to be added up over batches and ranks.

    logits: (B, C). labels: (B,) or (B, C).
    """
    if task == "classification":
        return [(logits.argmax(-1) == labels).sum()]
    if task == "multi_label":
        said, is_true = logits > 0, labels > 0.5  # a probability above one half
        both = said & is_true
        return [both.sum(), said.sum(), is_true.sum(), (said == is_true).all(-1).sum()]
    said, true = logits.double().squeeze(-1), labels.double()
    return [said.sum(), true.sum(), said.square().sum(), true.square().sum(), (said * true).sum()]


def enter(result: Evaluation, task: str, found: list[Any]) -> None:
    """Put the scores into an evaluation that has its samples and its loss. found: the sums over all of them."""
    count = result.samples
    if task == "classification":
        result.accuracy = int(found[0]) / count
    elif task == "multi_label":
        both, said, true, exact = found
        result.f1 = 2 * both / (said + true) if said + true else 1.0  # of all pairs of a row and a label
        result.exact_match = exact / count
    elif task == "regression":
        said, true, said_squares, true_squares, products = found
        spread = (count * said_squares - said**2) * (count * true_squares - true**2)
        result.pearson = (count * products - said * true) / math.sqrt(spread) if spread > 0 else None
    elif task != "question_answering":
        assert result.loss is not None
        result.perplexity = math.exp(result.loss) if result.loss < LARGEST_EXPONENT else math.inf


def squad(pairs: list[tuple[str, list[str]]]) -> tuple[float, float]:
    """(F1, exact match) of SQuAD, means over the questions. pairs: what was said, and what would be right."""
    f1 = [max(_f1(_plain(text), _plain(true)) for true in answers) for text, answers in pairs]
    exact = [max(_plain(text) == _plain(true) for true in answers) for text, answers in pairs]
    return sum(f1) / len(pairs), sum(exact) / len(pairs)


def _plain(text: str) -> list[str]:
    """The words that SQuAD compares: in lower case, without punctuation and articles."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _f1(said: list[str], true: list[str]) -> float:
    common = sum((Counter(said) & Counter(true)).values())
    if not said or not true:
        return float(said == true)
    return 2 * common / (len(said) + len(true))
