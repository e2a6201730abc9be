"""One run, from its composed configuration to the summary."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.conf import HydraConf
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from legroom import invocation, paths
from legroom.cli import console
from legroom.config import Config
from legroom.errors import Refusal
from legroom.foresight import instant
from legroom.jobs import fork_client, launch, post_mortem, run_lock, supervise
from legroom.levers.parallelism import rules as parallelism
from legroom.options import compose, hydra_errors, resume, validate
from legroom.ranks.rank_info import current_rank
from legroom.records import atomic_file, checkpoint_files, record, record_file, run_folder
from legroom.report.page import run_page
from legroom.tracking import trackers


@dataclass
class Composed:
    """A job as it was composed: the configuration, the record to be filled in, and why it cannot run.

    group, differs: for the tracker, the sweep's name and the overrides in which the job differs from its others.
    """

    cfg: Config
    record: record.Record
    problems: Sequence[str] = ()
    group: str | None = None
    differs: Sequence[str] = ()


def run_alone(composed: DictConfig, hydra_config: HydraConf) -> str:
    """Run one configuration and print its summary. Returns its status; raises only KeyboardInterrupt.

    hydra_config: Hydra's own node.
    """
    try:
        cfg, outcome, problems = compose.prepare(composed, hydra_config, compose.menu_folders(hydra_config))
    except OmegaConfBaseException as error:
        return _refuse([hydra_errors.explain(error, paths.menus())])
    if cfg is None or outcome is None:
        return _refuse(problems)
    if cfg.measure.repeats > 1:
        problems.append("measure.repeats runs the jobs of a sweep several times: add -m.")
    if cfg.objective is not None:
        problems.append("objective is what a sweeper compares: add -m and a sweeper, as hydra/sweeper=optuna.")
    is_main = current_rank().is_main
    new_folder = Path(hydra_config.runtime.output_dir if is_main else hydra_config.sweep.dir).absolute()
    if problems:
        return _run_and_report(new_folder, Composed(cfg, outcome, problems))
    folder = resume.resume_folder(cfg, new_folder, hydra_config.overrides.hydra)
    if folder != new_folder and is_main:
        with contextlib.suppress(OSError):
            new_folder.rmdir()  # Hydra has created it
    before = resume.matching_record(cfg, folder)
    problems = resume.save_as_before(cfg, outcome, before)
    if problems:
        return _refuse(problems)
    if before is not None and resume.is_finished(cfg, folder, before):
        return _report_finished(cfg, before, folder)
    if cfg.resume == resume.LATEST:
        problems = resume.mismatch_problems(cfg, checkpoint_files.in_run(folder))
        if problems:
            return _refuse(problems)
    damaged = None
    if before is None:
        damaged = resume.damaged_record(cfg, folder)
        if damaged is not None:
            outcome.warnings.append(damaged)
    return _run_and_report(folder, Composed(cfg, outcome), before, resumes=damaged is not None)


def _refuse(problems: Sequence[str]) -> str:
    console.say_problems(list(problems))
    return "refused"


def _report_finished(cfg: Config, before: record.Record, folder: Path) -> str:
    """Print the summary of a run that resume=latest finds finished."""
    console.say("Finished already, so nothing was trained. What it came to:")
    console.Console().finish(before, folder)
    if resume.model_missing(cfg, folder):
        console.say(f"save.final: {folder} is finished and left no checkpoint, so there is no model to save.")
    return "ok"


def _run_and_report(folder: Path, job: Composed, before: record.Record | None = None, resumes: bool = False) -> str:
    """Run a job in its folder, or refuse it for its problems, and print its summary. Returns its status.

    before: the record of the training that is resumed, which the new one replaces. resumes: it is resumed without one.
    """
    if before is None and not resumes and _holds_other_run(job.cfg, folder):
        if job.problems:
            return _refuse(job.problems)
        advice = "Choose another folder with hydra.run.dir="
        if job.cfg.resume is None:
            advice += ", or continue that training: resume=latest"
        return _refuse([f"{folder} holds another run's record, checkpoints or model. {advice}."])
    if not current_rank().is_main:  # it finds the same problems as rank 0, so no rank waits for one that never starts
        return run_nonzero_rank(job.record, job.problems)
    display = console.Console(beats=job.cfg.predicts)
    try:
        with run_lock.hold(folder):
            kept = {}
            if before is not None and before.status != "refused":
                kept = _contents(folder)
            outcome = run_in(folder, job, display)
            if kept and outcome.status == "refused" and outcome.training.steps == 0:  # the run stays what it was
                for path, content in kept.items():
                    atomic_file.write(path, content)
            elif resume.keep_figures(before, outcome, folder):
                write_page(outcome, folder)
    except Refusal as error:
        return _refuse([str(error)])
    except post_mortem.UnwrittenRecord as error:
        display.finish(error.record, folder)
        console.say_problems([unwritable(error)])
        return "failed"
    except OSError as error:
        return _refuse([unwritable(error)])
    if outcome.status == "refused" and outcome.error is not None:
        console.say_problems(outcome.error.message.splitlines())
    else:
        display.finish(outcome, folder)
    return outcome.status


def _holds_other_run(cfg: Config, folder: Path) -> bool:
    """Whether a folder has a record, checkpoints or a model of another run."""
    if is_occupied(folder):
        return True
    if checkpoint_files.in_run(folder):
        return cfg.resume is None
    return bool(cfg.save.final) and any(folder.glob(f"{run_folder.MODEL_FOLDER}/*"))


def _contents(folder: Path) -> dict[Path, bytes]:
    """The record and the page of a run, by their paths."""
    contents = {}
    for name in (record_file.FILE_NAME, *run_folder.PAGE_FILES):
        path = folder / name
        if path.is_file():
            contents[path] = path.read_bytes()
    return contents


def run_nonzero_rank(outcome: record.Record, problems: Sequence[str]) -> str:
    """Run a rank that a launcher started beside rank 0, which has the folder and the console. Returns its status."""
    if problems:
        return "refused"
    return supervise.run(launch.Job(outcome, None, current_rank()), lambda _: None).status


def is_occupied(folder: Path) -> bool:
    """Whether a folder holds a run's record. That of a refusal, which trained nothing, may be replaced."""
    try:
        return record_file.read(folder).status != "refused"
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # a record that cannot be read must not be overwritten
        return True


def run_in(
    folder: Path, job: Composed, display: console.Console, source: fork_client.ForkServer | None = None
) -> record.Record:
    """Refuse or run a job in its folder, which is locked. Returns its record. Raises OSError when it cannot be written.

    source: see `launch.start`.
    """
    cfg, outcome, group = job.cfg, job.record, job.group
    if job.problems:
        outcome.status = "refused"
        outcome.error = record.Error("load", "Refusal", "\n".join(job.problems))
        record_file.write(outcome, folder)
        return outcome
    run_folder.check_files(folder)
    checkpoint_files.tidy(folder)
    for name in run_folder.PAGE_FILES:
        atomic_file.clear(folder / name)
    record_file.prepare(folder)  # raises OSError now, before hours of training, if no record could be written
    for name in (record_file.FILE_NAME, *run_folder.PAGE_FILES):  # of the training that is resumed
        Path(folder, name).unlink(missing_ok=True)
    outcome.warnings += parallelism.ignored(cfg, outcome.overrides) + validate.warnings(cfg)
    outcome.warnings += resume.begins_anew(cfg, folder)
    tracker = trackers.open_tracker(cfg, outcome, folder, group, job.differs)
    with display:
        for line in outcome.warnings:
            display.warn(line)
        if group is None and cfg.predicts and instant.answer(cfg, outcome):
            record_file.write(outcome, folder)
        else:
            outcome = supervise.run(launch.Job(outcome, folder, current_rank()), display.on_message, source)
        sweep = None if group is None else folder.parent
        new_warnings = write_page(outcome, folder, sweep)
        new_warnings += tracker.finish(outcome)
    if new_warnings:
        outcome.warnings += new_warnings
        with contextlib.suppress(OSError):  # a full disk: the record is there without them, and the summary prints them
            record_file.write(outcome, folder)
    if tracker.line:
        console.say(tracker.line)
    return outcome


def write_page(outcome: record.Record, folder: Path, sweep: Path | None = None) -> list[str]:
    """Write the run's page, which shows its record. Returns a warning where that fails.

    sweep: the folder of the run's sweep. A run that was interrupted gets none: it ends within a second.
    """
    if outcome.status == "interrupted":
        return []
    try:
        run_page.write(outcome, folder, sweep)
    except Exception as error:  # the record is complete, and the page can be made from it later
        return [
            f"the page could not be made ({type(error).__name__}: {error}). When this is mended, run "
            f"{invocation.command('report')} {folder}"
        ]
    return []


def unwritable(error: OSError, key: str = "hydra.run.dir") -> str:
    """The refusal of a folder that cannot be written. key: what to type to choose another one."""
    return (
        f"{error.filename or 'the run folder'} cannot be written: {error.strerror or error}. "
        f"Choose another folder with {key}=."
    )
