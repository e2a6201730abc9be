"""What tables and summaries say of a predicted step: its interval with the digits that are known, and what it costs."""

import math
from typing import NamedTuple

from legroom import units
from legroom.records.record import EVALUATION, STEP, Record

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


def whole_text(record: Record) -> str:
    """What an estimate's device has, or what a limit leaves of it."""
    estimate = record.estimate
    assert estimate is not None
    whole, limit = units.size(estimate.capacity_bytes), (record.config.get("launch") or {}).get("memory_limit_gib")
    if estimate.limit_bytes is None:  # a limit above the card has no effect
        return whole
    if limit is not None:
        return f"{limit:g} GiB (launch.memory_limit_gib)"
    return f"a limit of {units.size(estimate.limit_bytes)} on {whole}"  # of PYTORCH_ALLOC_CONF


def margin_text(record: Record) -> str:
    """What stays free or is missing of an estimate's device, and where: in the training step or in the evaluation."""
    estimate = record.estimate
    assert estimate is not None
    text = f"{_left(estimate.margin_bytes)} of {whole_text(record)}"
    evaluation, free_there = evaluation_name(record), estimate.evaluation_margin_bytes
    if estimate.decided_by == EVALUATION:
        return f"{text} in {evaluation}"
    if free_there is not None and free_there < estimate.margin_bytes:
        return f"{text} in the training step, and {_left(free_there)} in {evaluation}"
    if estimate.decided_by == STEP and estimate.margin_bytes < 0:
        if free_there is not None and free_there < 0:
            return f"{text} in the training step, and {_left(free_there)} in {evaluation}"
        return f"{text} in the training step"
    return text


def needed_text(record: Record) -> str:
    """How much of the device the training step needs, and how much the evaluation if that is more."""
    estimate, used = record.estimate, record.memory.device_used_bytes
    assert estimate is not None
    needed = f"{units.size(used)} of the GPU" if used is not None else ""
    evaluation = evaluation_bytes(record)
    if evaluation is not None and evaluation > (used or 0):
        return f"{units.size(evaluation)} of the GPU in {evaluation_name(record)}, {units.size(used or 0)} in a step"
    return needed


def evaluation_bytes(record: Record) -> int | None:
    """The device memory that the evaluation of an estimate needs; None where there is none."""
    estimate = record.estimate
    if estimate is None or estimate.evaluation_margin_bytes is None:
        return None
    return (estimate.limit_bytes or estimate.capacity_bytes) - estimate.evaluation_margin_bytes


def evaluation_name(record: Record) -> str:
    """The evaluation, with the key that makes it smaller."""
    return f"the evaluation with eval.batch={(record.config.get('eval') or {}).get('batch')}"


def _left(margin_bytes: int) -> str:
    return f"{units.size(abs(margin_bytes))} {'stay free' if margin_bytes >= 0 else 'are missing'}"


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
