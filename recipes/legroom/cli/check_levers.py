"""`legroom check --try` on the terminal: a table of what each lever saves alone, and the arguments that make it fit."""

from typing import Any

from legroom.estimator.step_estimate import StepEstimate
from legroom.records.record import Record
from legroom.script_check.check_record import bare
from legroom.script_check.largest_batch import Largest
from legroom.script_check.try_levers import Trial, Tryout
from legroom.units import MIB


def text_of(tryout: Tryout) -> str:
    """What each lever saves alone, and which of them together make the script fit."""
    before, together = tryout.before, tryout.together
    lines = ["", "each alone, against the script as it is", f"  {'device memory':>16} {'step time':>10}"]
    alone = sorted(tryout.alone, key=lambda one: (one.estimate or before).device_used_bytes)
    lines += [*(_row(one, before) for one in alone), ""]
    if together is None:
        return "\n".join([*lines, "it fits as it is, and nothing that changes no result makes it faster"])
    if not together.fits:
        said = str(together.estimate or together.why).partition("\n")[0]
        lines.append(f"nothing that was tried fits; with {together.typed or 'none of it'}: {said}")
        return "\n".join([*lines, "fewer rows at a time: --largest-batch, with --batch-flag NAME of an argument"])
    head = "it fits as it is, and is faster with" if tryout.fits else "it fits with"
    assert together.estimate is not None, "what fits has an estimate"
    said = str(together.estimate).splitlines()  # the notes are those of the script as it is
    return "\n".join([*lines, f"{head}  {together.typed}", *(each for each in said if not each.startswith("  note:"))])


def _row(trial: Trial, before: StepEstimate) -> str:
    if trial.estimate is None:
        return f"  {'no verdict':>27}  {trial.typed}: {trial.why}"
    memory = (trial.estimate.device_used_bytes - before.device_used_bytes) / MIB
    time = trial.estimate.step_seconds / before.step_seconds - 1
    return f"  {memory:>+12,.0f} MiB {time:>+10.0%}  {trial.typed}"


def batch_text(found: Largest) -> str:
    """The largest batch that fits, as what to type, and what one more would come to."""
    lines = [
        f"{one.typed}: {one.why or str(one.estimate).partition(chr(10))[0]}"
        for one in (found.fits, found.larger)
        if one
    ]
    return "\n  ".join(["largest batch that fits" if found.fits else "no batch fits", *lines])


def plain(tryout: Tryout) -> dict[str, Any]:
    """The same as JSON knows it: rows as in the `levers` of a record's estimate."""
    together = tryout.together
    rows = [_lever(one, tryout.before) for one in tryout.alone]
    return {"alone": rows, "together": _lever(together, tryout.before) if together else None}


def _lever(one: Trial, before: StepEstimate) -> dict[str, Any]:
    if one.estimate is None:
        return {"words": one.typed, "refused": bare(one.why)}
    figures = {name: getattr(one.estimate, name) for name in ("device_used_bytes", "verdict", "step_seconds")}
    return {"words": one.typed, "saved_bytes": before.device_used_bytes - one.estimate.device_used_bytes, **figures}


def enter(tryout: Tryout, made: Record) -> None:
    """The same in the record of the script as it is, as its page shows them."""
    assert made.estimate is not None, "what was tried has an estimate"
    made.estimate.levers = plain(tryout)["alone"]
    if tryout.together is not None and tryout.together.fits:
        text = f"It fits {'as it is, and is faster ' * tryout.fits}with {tryout.together.typed}"
        if made.error is not None:
            made.error.hint = text
        else:
            made.warnings.append(text)
