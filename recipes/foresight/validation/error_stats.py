"""Signed errors of predictions, and what they come to together."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


def signed(predicted: float | None, measured: float | None) -> float | None:
    """(predicted - measured) / measured: below 0 where too little was predicted. None where one is missing."""
    return predicted / measured - 1 if predicted is not None and measured else None


@dataclass(frozen=True)
class Summary:
    """Of some signed errors: how many, the median of their sizes, the signed median, and the one farthest off."""

    count: int
    median_size: float
    median: float
    worst: float


def summary(errors) -> Summary | None:
    """What the errors come to, those that are None left out; None without any."""
    errors = [error for error in errors if error is not None]
    if not errors:
        return None
    return Summary(len(errors), statistics.median(map(abs, errors)), statistics.median(errors), max(errors, key=abs))


def rank_correlation(pairs) -> float | None:
    """Spearman's coefficient of (predicted, measured) pairs; None for fewer than two, or where all are the same."""
    pairs = list(pairs)
    if len(pairs) < 2:
        return None
    first, second = (_ranks(values) for values in zip(*pairs))
    if len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return statistics.correlation(first, second)


def _ranks(values) -> list[float]:
    """Places in order; equal values share the mean of theirs."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [statistics.mean(places[value]) for value in values]
