"""Checks of what a checkpoint's JSON files hold, before anything is made of it: the checkpoint may be of somebody else.

What depends on the model (names, shapes, types of tensors) is checked where it is restored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from legroom.records.record_file import check_config

LARGEST = 2**53  # of a number: what a float counts exactly
MOST_DIMENSIONS = 64  # torch's own limit
PYTHON_INTEGERS, NUMPY_INTEGERS = 625, 624  # of the random generators' states
FINGERPRINT_DIGITS = 16
MOST_FINGERPRINTS = 16
MOST_HEX = 10**5  # digits of torch's random state; it has 10,112


def check(values: dict[str, Any], rank: int, step: int, known: Iterable[str]) -> None:
    """Check the values of one rank. known: the files of the checkpoint. Raises ValueError, which says what is wrong."""
    try:
        _check_files(values.get("files"), rank, set(known))
        _check_boxes(values.get("boxes", {}))
        if "random" in values:
            _check_random(values["random"])
        if rank == 0:
            _check_shared(values, step)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _check_files(files: Any, rank: int, known: set[str]) -> None:
    """Each file holds tensors of this rank, and is one of the checkpoint."""
    names = re.compile(rf"rank-{rank}\.[a-z]+\.safetensors")
    if not isinstance(files, dict) or not all(names.fullmatch(name) and name in known for name in files):
        raise ValueError("it names files that are not this rank's")


def _check_boxes(boxes: Any) -> None:
    """Where this rank's shards are in the whole tensors."""
    if not isinstance(boxes, dict):
        raise ValueError("boxes is not a dictionary")
    for box in boxes.values():
        shape, offset = (box.get("shape"), box.get("offset")) if isinstance(box, dict) else (None, None)
        if not (isinstance(shape, list) and isinstance(offset, list) and _sizes(shape) and _sizes(offset)):
            raise ValueError("a shape or an offset in boxes is not a list of sizes")
        if not len(shape) == len(offset) <= MOST_DIMENSIONS:
            raise ValueError("a shape or an offset in boxes is not a list of sizes")


def _sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= LARGEST for value in values)


def _check_random(states: Any) -> None:
    """States that the random generators accept; NumPy does not check its own position."""
    if not isinstance(states, dict):
        raise ValueError("random is not a dictionary")
    version, integers, gauss = _items(states.get("python"), 3)
    position = integers[-1] if isinstance(integers, list) and integers else -1
    if (
        version != 3
        or not _integers(integers, PYTHON_INTEGERS)
        or position > PYTHON_INTEGERS - 1
        or not (gauss is None or _number(gauss))
    ):
        raise ValueError("the state of Python's random generator is not one")
    algorithm, integers, position, has_gauss, gauss = _items(states.get("numpy"), 5)
    if (
        algorithm != "MT19937"
        or not _integers(integers, NUMPY_INTEGERS)
        or not _integers([position, has_gauss], 2)
        or position > NUMPY_INTEGERS
        or not _number(gauss)
    ):
        raise ValueError("the state of NumPy's random generator is not one")
    texts = [states.get("torch"), *_items(states.get("cuda"), None)]
    if not all(isinstance(text, str) and re.fullmatch("([0-9a-f]{2})+", text[: MOST_HEX + 1]) for text in texts):
        raise ValueError("the state of torch's random generator is not one")


def _items(values: Any, count: int | None) -> list:
    if not isinstance(values, list) or count not in (None, len(values)):
        raise ValueError("the state of a random generator is not a list")
    return values


def _integers(values: Any, count: int) -> bool:
    """Whether these are so many integers of 32 bits."""
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(type(value) is int and 0 <= value < 2**32 for value in values)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _check_shared(values: dict[str, Any], step: int) -> None:
    """What rank 0 has saved for all ranks."""
    if not isinstance(values.get("config"), dict):
        raise ValueError("it names no configuration")
    check_config(values["config"])
    optimizer = values.get("optimizer", {"groups": [], "states": {}})
    groups, states = (optimizer.get("groups"), optimizer.get("states")) if isinstance(optimizer, dict) else (None, None)
    if not (_dictionaries(groups) and isinstance(states, dict) and _dictionaries(list(states.values()))):
        raise ValueError("the optimizer's state is not one")
    for name in ("optimizer", "scheduler", "scaler"):
        _check_plain(values.get(name), name)
    if not isinstance(values.get("scheduler", {}), dict) or not isinstance(values.get("scaler"), dict | None):
        raise ValueError("the state of the scheduler or the scaler is not a dictionary")
    _check_fingerprints(values.get("fingerprints", {}))
    _check_step_log(values, step)


def _check_fingerprints(values: Any) -> None:
    """Short names, and digits of hashes. Other versions may have other names."""
    if not isinstance(values, dict) or len(values) > MOST_FINGERPRINTS:
        raise ValueError("fingerprints are not a dictionary of a few")
    form = re.compile(f"[0-9a-f]{{{FINGERPRINT_DIGITS}}}")
    for name, digits in values.items():
        if not re.fullmatch("[a-z_]{1,20}", name) or not isinstance(digits, str) or not form.fullmatch(digits):
            raise ValueError("a fingerprint is not digits of a hash")


def _dictionaries(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, dict) for value in values)


def _check_plain(values: Any, name: str) -> None:
    """Numbers that are finite and not beyond LARGEST, at any depth."""
    if isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            _check_plain(value, name)
    elif isinstance(values, int | float) and not isinstance(values, bool) and not _number(values):
        raise ValueError(f"a number in {name} is {values:.3g}")


def step_log(values: dict[str, Any]) -> dict[str, list] | None:
    """What `StepLog.state` returned, or None. Found by its content: earlier versions have it under another key."""
    return next((entry for entry in values.values() if isinstance(entry, dict) and "losses" in entry), None)


def _check_step_log(values: dict[str, Any], step: int) -> None:
    """Lists with an entry for each step. A loss may be no number: a training goes on after one."""
    lists = step_log(values) or {}
    for name in ("losses", "seconds", "samples", "tokens") if lists else ():
        entries = lists.get(name)
        if not isinstance(entries, list) or len(entries) != step:
            raise ValueError(f"{name} of the step log are not those of {step} steps")
        for entry in entries:
            if not _number(entry) and not (name == "losses" and isinstance(entry, float) and not math.isfinite(entry)):
                raise ValueError(f"{name} of the step log are not numbers")
    for name in ("learning_rates", "gradient_norms", "unpadded"):  # which earlier versions do not have
        entries = lists.get(name, [None] * step)
        if not isinstance(entries, list) or len(entries) != step or not all(map(_number_or_none, entries)):
            raise ValueError(f"{name} of the step log are not those of {step} steps")
    evaluations = lists.get("evaluations", [])
    if not _dictionaries(evaluations) or len(evaluations) > step:
        raise ValueError("evaluations of the step log are not those of its steps")
    for row in evaluations:
        if type(row.get("step")) is not int or not all(map(_number_or_none, row.values())):
            raise ValueError("evaluations of the step log are not numbers")


def _number_or_none(value: Any) -> bool:
    """Also infinity and what is not a number: the norm of the gradients after an overflow."""
    return value is None or _number(value) or (isinstance(value, float) and not math.isfinite(value))
