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
        predicted = logits > 0  # a probability above one half
        true = labels > 0.5
        both = predicted & true
        return [both.sum(), predicted.sum(), true.sum(), (predicted == true).all(-1).sum()]
    predicted = logits.double().squeeze(-1)
    true = labels.double()
    return [predicted.sum(), true.sum(), predicted.square().sum(), true.square().sum(), (predicted * true).sum()]


def enter(result: Evaluation, task: str, totals: list[Any]) -> None:
    """Put the scores into an evaluation that has its samples and its loss. totals: of `sums` over all samples."""
    count = result.samples
    if task == "classification":
        result.accuracy = int(totals[0]) / count
    elif task == "multi_label":  # F1 over all pairs of a row and a label
        both, predicted, true, exact = totals
        result.f1 = 1.0
        if predicted + true > 0:
            result.f1 = 2 * both / (predicted + true)
        result.exact_match = exact / count
    elif task == "regression":
        predicted, true, predicted_squares, true_squares, products = totals
        spread = (count * predicted_squares - predicted**2) * (count * true_squares - true**2)
        if spread > 0:  # else all predictions or all labels are the same, and there is no correlation
            result.pearson = (count * products - predicted * true) / math.sqrt(spread)
    elif task != "question_answering":
        assert result.loss is not None
        result.perplexity = math.inf
        if result.loss < LARGEST_EXPONENT:
            result.perplexity = math.exp(result.loss)


def squad(pairs: list[tuple[str, list[str]]]) -> tuple[float, float]:
    """(F1, exact match) of SQuAD, means over the questions. pairs: a predicted answer, and the true ones."""
    f1_sum = 0.0
    exact = 0
    for text, answers in pairs:
        predicted = _words(text)
        true = [_words(answer) for answer in answers]
        f1_sum += max(_f1(predicted, words) for words in true)
        if predicted in true:
            exact += 1
    return f1_sum / len(pairs), exact / len(pairs)


def _words(text: str) -> list[str]:
    """The words that SQuAD compares: in lower case, without punctuation and articles."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _f1(predicted: list[str], true: list[str]) -> float:
    if not predicted or not true:
        return float(predicted == true)
    common = (Counter(predicted) & Counter(true)).total()
    return 2 * common / (len(predicted) + len(true))
