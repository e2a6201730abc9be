"""What stands at the end of both summaries: what went wrong and what to do, what the model says, where it is."""

from __future__ import annotations

import os
from pathlib import Path

from legroom import invocation
from legroom.records import model_card
from legroom.records.record import Record
from legroom.records.run_folder import MODEL_FOLDER, log_name

LONG_WAIT = 0.05  # of a step's time, for batches
SHOWN_CHARACTERS = 68  # of a text that the model was given, and of what it said


def generated_lines(outcome: Record) -> list[str]:
    """What the model said before and after the training (eval.generate)."""
    lines = []
    for each in outcome.evaluation.generated if outcome.evaluation is not None else []:
        lines.append(f"  Text:   ...{each['prompt'][-SHOWN_CHARACTERS:]!r}")
        lines += [f"  {when + ':':<8}{each[when][:SHOWN_CHARACTERS]!r}" for when in ("before", "after")]
    return lines


def model_lines(outcome: Record, folder: Path) -> list[str]:
    """Where the trained model is and what to type to use it, or how to save one."""
    if outcome.status != "ok" or outcome.estimate is not None:
        return []
    if not (folder / MODEL_FOLDER).is_dir():
        return ["  Model: not saved. Type save.final=true to keep what is trained."]
    use = model_card.usage(outcome, shorter(folder), invocation.command("chat"))
    return [f"  Model: {shorter(folder / MODEL_FOLDER)}"] + [f"  Use it: {use}"] * (use is not None)


def error_lines(outcome: Record) -> list[str]:
    """What went wrong."""
    error = outcome.error
    if error is None:
        return []
    rank = f" on rank {error.rank}" if outcome.config["parallelism"]["num_processes"] > 1 else ""
    return [f"  {error.type} in {error.phase}{rank}: {error.message.splitlines()[0]}"]


def advice_lines(outcome: Record, folder: Path) -> list[str]:
    """What to do about it."""
    error = outcome.error
    if error is None:
        return []
    lines = [f"  {error.hint}"] if error.hint else []
    if outcome.status == "failed":
        lines.append(f"  The libraries' output: {folder / log_name(error.rank)}")
    return lines


def data_wait_lines(outcome: Record) -> list[str]:
    """What to type where the steps wait long for their batches."""
    share, data = outcome.speed.data_wait_share or 0.0, outcome.config["data"]
    if share <= LONG_WAIT:
        return []
    pins = data["pin_memory"] or outcome.environment["device"] != "cuda"  # only a copy to a GPU needs pinned memory
    try_this = f"data.workers={2 * data['workers'] or 2}" + ("" if pins else " data.pin_memory=true")
    return [f"  {share:.0%} of a step's time passes until its batches are there; to prepare them meanwhile: {try_this}"]


def number(value: float | None, digits: int = 4) -> str:
    return "not a number" if value is None or value != value else f"{value:.{digits}f}"


def shorter(path: Path) -> str:
    """The path, absolute or relative to the working directory, whichever is shorter."""
    return min(str(path), os.path.relpath(path), key=len)
