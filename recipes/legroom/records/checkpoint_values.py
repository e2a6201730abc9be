"""Checks of what a checkpoint's JSON files hold, before anything is made of it: the checkpoint may be of somebody else.

What depends on the model (names, shapes, types of tensors) is checked where it is restored.
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from legroom.records.record_file import check_config
from legroom.records.validate import has_type

LARGEST = 2**53  # of a number: what a float counts exactly
MOST_DIMENSIONS = 64  # torch's own limit
PYTHON_INTEGERS, NUMPY_INTEGERS = 625, 624  # of the random generators' states
FINGERPRINT_DIGITS = 16
MOST_FINGERPRINTS = 16
MOST_HEX = 10**5  # digits of torch's random state; it has 10,112
# Of each step in the log. A loss may be no number: a training goes on after one.
NUMBERS, OTHERS = ("seconds", "samples", "tokens"), ("learning_rates", "gradient_norms", "unpadded")


def check(values: dict[str, Any], rank: int, step: int, known: Iterable[str]) -> None:
    """Check the values of one rank. known: the files of the checkpoint. Raises ValueError, which says what is wrong."""
    try:
        for what, is_right in _checks(values, rank, step, set(known)):
            if not is_right:
                raise ValueError(f"its {what} are not as a training saves them")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _checks(values: dict[str, Any], rank: int, step: int, known: set[str]) -> Iterator[tuple[str, bool]]:
    """(what is checked, whether it is as a training saves it). Rank 0 has what all ranks share."""
    files, boxes = values.get("files"), values.get("boxes", {})
    names = re.compile(rf"rank-{rank}\.[a-z]+\.safetensors")
    yield "files", isinstance(files, dict) and all(names.fullmatch(name) and name in known for name in files)
    yield "boxes", has_type(boxes, dict[str, dict]) and all(map(_is_box, boxes.values()))
    yield "random states", "random" not in values or _are_random_states(values["random"])
    if rank:
        return
    yield "config's keys", has_type(values.get("config"), dict)
    check_config(values["config"])
    optimizer = values.get("optimizer", {"groups": [], "states": {}})
    yield "optimizer's values", has_type(optimizer, dict) and has_type(optimizer.get("groups"), list[dict])
    yield "optimizer's states", has_type(optimizer.get("states"), dict[str, dict])
    yield "scheduler's values", has_type(values.get("scheduler", {}), dict)
    yield "scaler's values", has_type(values.get("scaler"), dict | None)
    yield "numbers", all(_is_bounded(values.get(name)) for name in ("optimizer", "scheduler", "scaler"))
    yield "fingerprints", are_fingerprints(values.get("fingerprints"))
    yield "steps", _is_step_log(values.get("step_log"), step)


def _is_box(box: dict[str, Any]) -> bool:
    """Where a shard is in the whole tensor: sizes, of as many dimensions."""
    shape, offset = box.get("shape"), box.get("offset")
    if not isinstance(shape, list) or not isinstance(offset, list):
        return False
    if len(shape) != len(offset) or len(shape) > MOST_DIMENSIONS:
        return False
    return all(type(value) is int and 0 <= value <= LARGEST for value in [*shape, *offset])


def _are_random_states(states: Any) -> bool:
    """States that the random generators accept; NumPy does not check its own position."""
    match states:
        case {
            "python": [3, [*integers], None | int() | float()],
            "numpy": ["MT19937", [*keys], position, has_gauss, int() | float()],
            "torch": str(state),
            "cuda": [*others],
        }:
            if len(integers) != PYTHON_INTEGERS or len(keys) != NUMPY_INTEGERS:
                return False
            if not all(type(value) is int and 0 <= value < 2**32 for value in [*integers, *keys, position, has_gauss]):
                return False
            if integers[-1] >= PYTHON_INTEGERS or position > NUMPY_INTEGERS:
                return False
            return has_type(others, list[str]) and all(map(_is_hex, [state, *others]))
    return False


def _is_hex(text: str) -> bool:
    """Whether a text is of bytes in hexadecimal digits, and no longer than any state is."""
    return re.fullmatch("([0-9a-f]{2})+", text[: MOST_HEX + 1]) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _is_bounded(value: Any) -> bool:
    """Whether all numbers in it, at any depth, are finite and not beyond LARGEST."""
    if isinstance(value, dict):
        return all(map(_is_bounded, value.values()))
    if isinstance(value, list):
        return all(map(_is_bounded, value))
    return isinstance(value, bool | str | None) or _is_number(value)


def are_fingerprints(values: Any) -> bool:
    """Short names, and digits of hashes. Other versions may have other names."""
    if not has_type(values, dict[str, str]) or len(values) > MOST_FINGERPRINTS:
        return False
    for name, digits in values.items():
        if not re.fullmatch("[a-z_]{1,20}", name) or not re.fullmatch(f"[0-9a-f]{{{FINGERPRINT_DIGITS}}}", digits):
            return False
    return True


def _is_step_log(log: Any, step: int) -> bool:
    """Whether `StepLog.state` may have returned it: lists with an entry for each step, and the evaluations between."""
    if not has_type(log, dict[str, list]):
        return False
    for name in ("losses", *NUMBERS, *OTHERS):
        entries = log.get(name)
        if entries is None or len(entries) != step or not all(_fits(name, entry) for entry in entries):
            return False
    rows = log.get("evaluations")
    if rows is None or len(rows) > step:
        return False
    for row in rows:
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            return False
        if not all(_fits("evaluations", value) for value in row.values()):
            return False
    return True


def _fits(name: str, value: Any) -> bool:
    """Whether a list of that name takes a value: the norm of the gradients may be infinite, or not be known."""
    if value is None:
        return name not in ("losses", *NUMBERS)
    if isinstance(value, float) and not math.isfinite(value):
        return name not in NUMBERS
    return _is_number(value)
