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
    before = tryout.before

    def needed_bytes(trial: Trial) -> int:
        return (trial.estimate or before).device_used_bytes

    lines = ["", "each alone, against the script as it is", f"  {'device memory':>16} {'step time':>10}"]
    lines += [_row(trial, before) for trial in sorted(tryout.alone, key=needed_bytes)]
    lines.append("")
    lines += _together(tryout)
    return "\n".join(lines)


def _row(trial: Trial, before: StepEstimate) -> str:
    if trial.estimate is None:
        return f"  {'no verdict':>27}  {trial.typed}: {trial.why}"
    memory = (trial.estimate.device_used_bytes - before.device_used_bytes) / MIB
    time = trial.estimate.step_seconds / before.step_seconds - 1
    return f"  {memory:>+12,.0f} MiB {time:>+10.0%}  {trial.typed}"


def _together(tryout: Tryout) -> list[str]:
    """The levers that make the script fit, or faster where it fits as it is."""
    together = tryout.together
    if together is None:
        return ["it fits as it is, and nothing that changes no result makes it faster"]
    if not together.fits:
        verdict = str(together.estimate or together.why).partition("\n")[0]
        return [
            f"nothing that was tried fits; with {together.typed or 'none of it'}: {verdict}",
            "fewer rows at a time: --largest-batch, with --batch-flag NAME of an argument",
        ]
    assert together.estimate is not None, "what fits has an estimate"
    heading = "it fits as it is, and is faster with" if tryout.fits else "it fits with"
    lines = [f"{heading}  {together.typed}"]
    for line in str(together.estimate).splitlines():
        if not line.startswith("  note:"):  # the notes are those of the script as it is
            lines.append(line)
    return lines


def batch_text(largest: Largest) -> str:
    """The largest batch that fits, as what to type, and what one more would come to."""
    lines = ["largest batch that fits" if largest.fits else "no batch fits"]
    for trial in (largest.fits, largest.larger):
        if trial:
            verdict = trial.why or str(trial.estimate).splitlines()[0]
            lines.append(f"{trial.typed}: {verdict}")
    return "\n  ".join(lines)


def plain(tryout: Tryout) -> dict[str, Any]:
    """The same as JSON knows it: rows as in the `levers` of a record's estimate."""
    together = None
    if tryout.together:
        together = _lever(tryout.together, tryout.before)
    return {"alone": [_lever(trial, tryout.before) for trial in tryout.alone], "together": together}


def _lever(trial: Trial, before: StepEstimate) -> dict[str, Any]:
    estimate = trial.estimate
    if estimate is None:
        return {"words": trial.typed, "refused": bare(trial.why)}
    return {
        "words": trial.typed,
        "saved_bytes": before.device_used_bytes - estimate.device_used_bytes,
        "device_used_bytes": estimate.device_used_bytes,
        "verdict": estimate.verdict,
        "step_seconds": estimate.step_seconds,
    }


def enter(tryout: Tryout, record: Record) -> None:
    """The same in the record of the script as it is, as its page shows them."""
    assert record.estimate is not None, "what was tried has an estimate"
    record.estimate.levers = plain(tryout)["alone"]
    together = tryout.together
    if together is None or not together.fits:
        return
    if tryout.fits:
        text = f"It fits as it is, and is faster with {together.typed}"
    else:
        text = f"It fits with {together.typed}"
    if record.error is not None:
        record.error.hint = text
    else:
        record.warnings.append(text)
