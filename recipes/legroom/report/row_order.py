"""The order of a table's rows: that of the sweep, of the start, of the labels."""

from __future__ import annotations

import datetime
import functools
import math
import re
from collections.abc import Callable
from typing import Any

from legroom.records import record_file
from legroom.records.record import Record

MOST_DIGITS = 1000  # of a number in a label that is sorted as a number


@functools.total_ordering
class _Content:
    """A record by all that it holds, which is looked at where nothing before it tells two records apart."""

    def __init__(self, found: Record):
        self.found = found

    def _text(self) -> str:
        return record_file.to_json(self.found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and (self.found is other.found or self._text() == other._text())

    def __lt__(self, other: _Content) -> bool:
        return self._text() < other._text()


def in_order(described: list[tuple[Record, dict[str, str]]], keys: list[str]) -> Callable:
    """The sort key of (record, facts): by number in the sweep, then by start time, then by label."""
    numbers = [_job_number(found) for found, _ in described]
    one_sweep = None not in numbers and len(set(numbers)) == len(numbers)  # else several sweeps, each numbered from 0

    def order(job: tuple[Record, dict[str, str]]) -> tuple:
        found, values = job
        number, started = _job_number(found), _timestamp(found.environment.get("started_at"))
        natural = [
            [
                (int(part), "") if part.isdecimal() and len(part) < MOST_DIGITS else (-1, part)
                for part in re.split(r"(\d+)", values.get(key, ""))
            ]
            for key in keys
        ]
        measure, train = found.config.get("measure") or {}, found.config.get("train") or {}
        return (
            number if one_sweep else 0,
            started,
            number or 0,
            natural,
            str(measure.get("repeat")),
            str(train.get("seed")),
            str(found.config_key),
            _Content(found),
        )

    return order


def _job_number(found: Record) -> int | None:
    """The number of a job in its sweep; None for a single run."""
    number = found.environment.get("job_number")
    return number if isinstance(number, int) else None


def _timestamp(text: Any) -> float:
    """Seconds of a time in ISO format; infinity where there is none, which sorts last."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return math.inf
