"""Signed relative errors of predictions, and statistics of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass


def signed(predicted: float | None, measured: float | None) -> float | None:
    """(predicted - measured) / measured: negative where too little was predicted. None where one is missing."""
    return predicted / measured - 1 if predicted is not None and measured else None


@dataclass(frozen=True)
class Summary:
    """Of a list of signed errors: their number, the median of their sizes, the median, and the largest in size."""

    count: int
    median_size: float
    median: float
    worst: float


def summary(errors: Iterable[float | None]) -> Summary | None:
    """Statistics of the errors that are not None; None without any."""
    known = [error for error in errors if error is not None]
    if not known:
        return None
    return Summary(len(known), statistics.median(map(abs, known)), statistics.median(known), max(known, key=abs))


def quantile(values: Iterable[float], share: float) -> float:
    """The value that a share of the values (0 to 1) does not exceed: the nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def rank_correlation(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Spearman's coefficient of (predicted, measured) pairs; None for fewer than two, or where all are equal."""
    pairs = list(pairs)
    if len(pairs) < 2:
        return None
    first, second = (_ranks(values) for values in zip(*pairs))
    if len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return statistics.correlation(first, second)


def _ranks(values: tuple[float, ...]) -> list[float]:
    """The rank of each value in ascending order; equal values share the mean of their ranks."""
    ranks: dict[float, list[int]] = {}
    for rank, value in enumerate(sorted(values)):
        ranks.setdefault(value, []).append(rank)
    return [statistics.mean(ranks[value]) for value in values]
