"""`legroom check --largest-batch`: the largest batch of a script that fits, with few runs of it. Imports no torch."""

import math
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from legroom.errors import Refusal
from legroom.script_check import check
from legroom.script_check.try_levers import Found, Lever, Trial, checked

BATCH = "per_device_train_batch_size"  # of TrainingArguments
STRAIGHT = 7  # runs that follow the line of memory against batch; later ones halve what is left
FIRST = 8  # where the script's own batch is not known
FLAT = 16  # times a batch that takes as much: the memory does not grow with it


class Largest(NamedTuple):
    """fits: the run with the largest batch that does; None: not even 1. larger: that with one more."""

    fits: Trial | None
    larger: Trial


def largest(
    first: check.Checked, settings: check.Settings, flag: str | None, on_message: Callable[[dict[str, Any]], None]
) -> dict[str, Largest]:
    """The largest batch of a script on each GPU. first: the script as it is, with its facts. flag: the argument that is
    its batch; None: it has TrainingArguments. Raises Refusal where the memory does not grow with that."""
    lever, now = _batch_of(first.facts, flag)
    runs = {} if now is None else {now: first}

    def trial(size: int, name: str) -> Trial:
        if size not in runs:
            on_message({"kind": "trial", "text": f"is tried with {lever(size).typed}"})
            runs[size] = checked(first.program, first.gpus, settings, [lever(size)])
        return Trial([lever(size)], runs[size].estimates.get(name), runs[size].why, settings.budget)

    return {name: _largest(lambda size, name=name: trial(size, name), now or FIRST) for name in first.gpus}


def _batch_of(facts: Mapping[str, Any], flag: str | None) -> tuple[Callable[[int], Lever], int | None]:
    """(the lever of a batch; the batch of the script as it is, where it is known)."""
    values, typed = facts.get("arguments") or {}, facts.get("typed") or {}
    if flag is None and not values:
        raise Refusal("--largest-batch: there are no TrainingArguments. Name the argument: --batch-flag batch_size")
    argument = None if flag is None else _argument_of(typed, flag)
    now = values[BATCH] if flag is None else (argument or {}).get("value")

    def lever(size: int) -> Lever:
        if flag is None:
            return Found(facts).of_arguments(values, "batch", False, **{BATCH: size})[0]
        text = argument["flag"] if argument is not None else _as_typed(flag)
        argv = (f"{text}{size}",) if text.endswith("=") else (text, str(size))
        return Lever("batch", shlex.join(argv), argv=argv)

    return lever, now if isinstance(now, int) and now > 0 else None


def _argument_of(typed: Mapping[str, Any], flag: str) -> Mapping[str, Any] | None:
    """The script's argument that a person names: by its flag or its name, with dashes or underscores; None: its parser
    was not seen to have it."""
    name = flag.lstrip("-").rstrip("=").replace("-", "_")
    for key, argument in typed.items():
        if name in (key, argument["flag"].lstrip("-").replace("-", "_")):
            return None if flag.endswith("=") else argument
    return None


def _as_typed(flag: str) -> str:
    """A flag that no parser was seen to have, as it stands in front of a number: --batch-size, or batch_size= as it
    is."""
    return flag if flag.startswith("-") or flag.endswith("=") else f"--{flag}"


def _largest(trial: Callable[[int], Trial], size: int) -> Largest:
    """Follow the line of memory against batch through the runs that are nearest to the limit, on both sides of it."""
    low, high, spare = 0, math.inf, dict[int, float]()  # low fits, high does not
    while low + 1 < high:
        found = trial(size)
        low, high = (size, high) if found.fits else (low, size)
        if found.estimate is not None:
            one = found.estimate
            spare[size] = min(one.left_bytes - one.kept_bytes, found.budget - one.device_used_bytes)
        elif not spare:
            raise Refusal(f"with {found.typed}: {found.why}")
        near = [low, int(high)] if {low, high} <= spare.keys() else sorted(spare, key=lambda each: abs(spare[each]))[:2]
        grows = (spare[near[0]] - spare[near[1]]) / (near[1] - near[0]) if len(near) > 1 else -1
        if high == math.inf and size >= FLAT * min(one for one in spare if spare[one] == spare[size]):
            raise Refusal(f"with {found.typed} a step takes no more than with less: is it read, are there rows?")
        if found.estimate is not None and len(spare) < STRAIGHT and grows > 0:
            size = int(near[0] + spare[near[0]] / grows)
        else:
            size = 2 * low if high == math.inf else int(low + high) // 2
        size = int(min(max(size, low + 1), high - 1))
    return Largest(trial(low) if low else None, trial(int(high)))
