"""What tables and summaries say of a predicted step: its interval with the digits that are known, and what it costs."""

import math
from typing import NamedTuple

from legroom.records.record import Record

MILLION = 1e6
HOUR_SECONDS = 3600
# What the interval of a predicted time is called wherever it is shown, and what it rests on.
LIKELY = (
    "Of predicted times and speeds two digits are known. In brackets is the likely range: nine of ten published steps "
    "lay in theirs."
)


class Interval(NamedTuple):
    """A predicted figure, and between what nine of ten are."""

    median: float
    low: float
    high: float


def number(value: float, digits: int = 4) -> str:
    """A number with this many significant digits, without an exponent: 14949, -9.313, 0.07830."""
    if not value:
        return "0"
    rounded = float(f"{abs(value):.{digits - 1}e}")  # 9.9996 has two digits before the point
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(rounded)))}f}"


def two_digits(value: float) -> str:
    """330 for 327.4, 4.1 for 4.13."""
    return number(float(f"{max(value, 0):.1e}"), 2)


def interval_text(interval: Interval, unit: float = 1) -> str:
    """A figure in a unit, and its interval: '330 (260 to 680)'."""
    median, low, high = (two_digits(value / unit) for value in interval)
    return f"{median} ({low} to {high})"


def step_seconds(record: Record) -> Interval | None:
    """Of a predicted step; None for a measured one."""
    speed = record.speed
    if speed.step_seconds_median is None or speed.step_seconds_low is None or speed.step_seconds_high is None:
        return None
    return Interval(speed.step_seconds_median, speed.step_seconds_low, speed.step_seconds_high)


def samples_per_second(record: Record) -> Interval | None:
    """Of a predicted step; None for a measured one. The longest step has the lowest figure."""
    seconds, speed = step_seconds(record), record.speed.samples_per_second
    if seconds is None or speed is None or not seconds.low:
        return None
    return Interval(speed, speed * seconds.median / seconds.high, speed * seconds.median / seconds.low)


def cost_of_million_tokens(record: Record) -> float | None:
    """What training on a million tokens of the data costs, in the currency of gpu.price_per_hour; None where that is
    not given. Padding is no data."""
    price, tokens = (record.config.get("gpu") or {}).get("price_per_hour"), record.speed.tokens_per_second
    if record.estimate is not None and record.estimate.unpadded_tokens_per_second:
        tokens = record.estimate.unpadded_tokens_per_second
    elif tokens:
        tokens *= 1 - (record.training.padding_share or 0)
    if price is None or not tokens:
        return None
    mode = record.config.get("parallelism") or {}
    gpus = max(mode.get("num_processes") or 1, mode.get("replicas") or 1)  # with dp one process has several
    return price * gpus / HOUR_SECONDS / tokens * MILLION
