"""One run, from its composed configuration to the summary."""

from __future__ import annotations

import contextlib
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from recipes.cli import console, summary
from recipes.errors import Refusal
from recipes.jobs import fork_client, launch, run_lock, supervise
from recipes.options import compose, hydra_errors, resume, validate
from recipes.ranks import rank_info
from recipes.records import checkpoint_files, record, record_file
from recipes.records.messages import Message
from recipes.tracking import trackers

# One run's exit code by its status; 1 for any other.
EXIT_CODES = {"ok": 0, "preempted": 0, "refused": 2, "oom": 3, "interrupted": 130}


def run_alone(composed, told, conf: Path) -> str:
    """One run, from its composed configuration to the summary on the screen. Returns its status; never raises."""
    try:
        cfg, outcome, problems = compose.prepare(composed, told, compose.menu_folders(told))
    except OmegaConfBaseException as error:
        cfg, problems = None, [hydra_errors.explain(error, conf)]
    if cfg is None:
        console.say_problems(problems)
        return "refused"
    if cfg.measure.repeats > 1:
        problems.append("measure.repeats runs the jobs of a sweep several times: add -m.")
    fresh = folder = Path(told.runtime.output_dir if rank_info.current_rank().is_main else told.sweep.dir).absolute()
    if not problems:
        folder = resume.resume_folder(cfg, folder, told.overrides.hydra)
    before = resume.matching_record(cfg, folder) if not problems else None
    done = not problems and resume.is_finished(cfg, folder, before)
    if folder != fresh and rank_info.current_rank().is_main:
        with contextlib.suppress(OSError):
            fresh.rmdir()  # Hydra has made it, for a run that begins
    if done:
        console.say(summary.summary(before, folder))
        if resume.model_missing(cfg, folder):
            console.say(f"save.final: {folder} is finished and left no checkpoint, so there is no model to save.")
        return "ok"
    if cfg.resume == resume.LATEST and not problems:
        problems = resume.mismatch_problems(cfg, checkpoint_files.found(folder))
        if problems:
            console.say_problems(problems)
            return "refused"
    if before is None and occupied(folder):
        console.say_problems(
            problems
            or [
                f"{folder} holds another run's record. Choose another folder with "
                "hydra.run.dir=, or go on with that training: resume=latest."
            ]
        )
        return "refused"
    if (
        not rank_info.current_rank().is_main
    ):  # it has seen what rank 0 refuses: nobody may wait for ranks that do not come
        return run_nonzero_rank(outcome, problems)
    try:
        with run_lock.hold(folder):
            outcome = run_in(folder, cfg, outcome, problems, console.Console())
            resume.keep_figures(before, outcome, folder)
    except Refusal as busy:
        console.say_problems([str(busy)])
        return "refused"
    except OSError as error:
        console.say_problems([unwritable(error)])
        return "failed"
    if outcome.status == "refused":
        console.say_problems(outcome.error.message.splitlines())
    else:
        console.say(summary.summary(outcome, folder))
    return outcome.status


def run_nonzero_rank(outcome: record.Record, problems: list[str]) -> str:
    """A rank that was started beside rank 0, which has the folder and the screen. Returns its status."""
    if problems:
        return "refused"
    return supervise.run(launch.Job(outcome, None, rank_info.current_rank()), lambda _: None).status


def occupied(folder: Path) -> bool:
    """Whether a folder holds a run's record; a refusal trained nothing and may be replaced."""
    try:
        return record_file.read(folder).status != "refused"
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # not a record that we can read: not ours to overwrite
        return True


def run_in(
    folder: Path,
    cfg,
    outcome: record.Record,
    problems: list[str],
    display: console.Console,
    fork_server: fork_client.ForkServer | None = None,
    group: str | None = None,
) -> record.Record:
    """Refuse or run a job in its folder. Returns its record. Raises OSError when the folder cannot be written.

    group: the sweep's name, for the tracker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if problems:
        outcome.status, outcome.error = "refused", record.Error("load", "Refusal", "\n".join(problems))
        record_file.write(outcome, folder)
        return outcome
    Path(folder, record_file.FILE_NAME).unlink(
        missing_ok=True
    )  # of the run that is resumed: it must not pass for the new
    outcome.warnings = validate.warnings(cfg)
    tracker = trackers.open_tracker(cfg, outcome, folder, group)

    def on_message(message: Message) -> None:
        display.on_message(message)
        tracker.on_message(message)

    with display:
        for line in outcome.warnings:
            display.warn(line)
        outcome = supervise.run(launch.Job(outcome, folder, rank_info.current_rank()), on_message, fork_server)
        troubles = tracker.finish(outcome)
    if troubles:
        outcome.warnings += troubles
        record_file.write(outcome, folder)
    if tracker.line:
        console.say(tracker.line)
    return outcome


def unwritable(error: OSError, key: str = "hydra.run.dir") -> str:
    return (
        f"{error.filename or 'the run folder'} cannot be written: {error.strerror or error}. "
        f"Choose another folder with {key}=."
    )
