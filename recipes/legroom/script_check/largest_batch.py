"""`legroom check --largest-batch`: the largest batch of a script that fits, with few runs of it. Imports no torch."""

import math
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from legroom.errors import Refusal
from legroom.script_check import check
from legroom.script_check.try_levers import Lever, ScriptLevers, Trial, checked

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
    lever_of, script_batch = _batch_of(first.facts, flag)
    runs: dict[int, check.Checked] = {}
    if script_batch is not None:
        runs[script_batch] = first

    def run(batch: int) -> check.Checked:
        if batch not in runs:
            on_message({"kind": "trial", "text": f"is tried with {lever_of(batch).typed}"})
            runs[batch] = checked(first.program, first.gpus, settings, [lever_of(batch)])
        return runs[batch]

    largest_batches = {}
    for name in first.gpus:

        def trial(batch: int, name: str = name) -> Trial:
            result = run(batch)
            return Trial([lever_of(batch)], result.estimates.get(name), result.why, settings.budget)

        largest_batches[name] = _largest(trial, script_batch or FIRST)
    return largest_batches


def _batch_of(facts: Mapping[str, Any], flag: str | None) -> tuple[Callable[[int], Lever], int | None]:
    """(the lever of a batch; the batch of the script as it is, where it is known)."""
    values = facts.get("arguments")
    if flag is None:
        if not values:
            raise Refusal("--largest-batch: there are no TrainingArguments. Name the argument: --batch-flag batch_size")

        def keyword(batch: int) -> Lever:
            levers = ScriptLevers(facts)
            levers.add_argument(values, "batch", free=False, **{BATCH: batch})
            return levers.levers[0]

        return keyword, _positive(values[BATCH])

    argument = _argument_of(facts.get("typed") or {}, flag)
    text = argument["flag"] if argument is not None else _as_typed(flag)

    def typed(batch: int) -> Lever:
        argv = (f"{text}{batch}",) if text.endswith("=") else (text, str(batch))
        return Lever("batch", shlex.join(argv), argv=argv)

    return typed, _positive(argument["value"]) if argument is not None else None


def _positive(value: Any) -> int | None:
    """A number of rows; None for anything else that an argument may hold."""
    return value if isinstance(value, int) and value > 0 else None


def _argument_of(typed: Mapping[str, Any], flag: str) -> Mapping[str, Any] | None:
    """The script's argument that a person names: by its flag or its name, with dashes or underscores; None: its parser
    was not seen to have it."""
    if flag.endswith("="):  # of a parser of another kind
        return None
    name = flag.lstrip("-").replace("-", "_")
    for key, argument in typed.items():
        if name in (key, argument["flag"].lstrip("-").replace("-", "_")):
            return argument
    return None


def _as_typed(flag: str) -> str:
    """A flag that no parser was seen to have, as it stands in front of a number: --batch-size, or batch_size= as it
    is."""
    if flag.startswith("-") or flag.endswith("="):
        return flag
    return f"--{flag}"


def _largest(trial: Callable[[int], Trial], batch: int) -> Largest:
    """Follow the line of memory against batch through the runs that are nearest to the limit, on both sides of it."""
    fits, too_large = 0, math.inf  # the largest batch that fits, and the smallest that does not
    spare: dict[int, float] = {}  # batch -> bytes between what it takes and the limit; below 0 where it does not fit
    while fits + 1 < too_large:
        run = trial(batch)
        if run.fits:
            fits = batch
        else:
            too_large = batch
        if run.estimate is not None:
            spare[batch] = _spare_bytes(run)
        elif not spare:
            raise Refusal(f"with {run.typed}: {run.why}")
        if too_large == math.inf and batch >= FLAT * _smallest_as_large(spare, batch):
            raise Refusal(f"with {run.typed} a step takes no more than with less: is it read, are there rows?")
        expected = None
        if run.estimate is not None and len(spare) < STRAIGHT:
            expected = _where_the_line_ends(spare, fits, too_large)
        if expected is not None:
            batch = expected
        elif too_large == math.inf:
            batch = 2 * fits
        else:
            batch = int(fits + too_large) // 2
        batch = int(min(max(batch, fits + 1), too_large - 1))
    return Largest(trial(fits) if fits else None, trial(int(too_large)))


def _spare_bytes(run: Trial) -> float:
    estimate = run.estimate
    assert estimate is not None
    return min(estimate.left_bytes - estimate.kept_bytes, run.budget - estimate.device_used_bytes)


def _smallest_as_large(spare: Mapping[int, float], batch: int) -> int:
    """The smallest batch that takes as much memory as this one."""
    return min(other for other in spare if spare[other] == spare[batch])


def _where_the_line_ends(spare: Mapping[int, float], fits: int, too_large: float) -> int | None:
    """The batch at which nothing would be spare, by a line through two runs; None where it does not fall."""
    if fits in spare and too_large in spare:
        near, far = fits, int(too_large)
    elif len(spare) > 1:
        near, far = sorted(spare, key=lambda batch: abs(spare[batch]))[:2]
    else:
        return None
    bytes_per_row = (spare[near] - spare[far]) / (far - near)
    if bytes_per_row <= 0:
        return None
    return int(near + spare[near] / bytes_per_row)
