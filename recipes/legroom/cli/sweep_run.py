"""The jobs of a sweep, and its end: the report, the tracker's line and the exit code."""

import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from legroom import config, invocation, paths
from legroom.cli import console, exit_codes, single_run, submitit_jobs
from legroom.cli import sweep as sweeps
from legroom.cli.job_state import SweepState
from legroom.errors import Refusal
from legroom.jobs import post_mortem, run_lock
from legroom.options import compose, hydra_errors, objective, resume, save
from legroom.ranks import rank_info
from legroom.records import checkpoint_files, run_folder
from legroom.records.record import Record
from legroom.report import report, screen_table
from legroom.tracking import trackers

BASIC_SWEEPER = "BasicSweeper"  # Hydra's own, which compares nothing
NO_OBJECTIVE = "this sweeper compares a number of each job's record. Type which one, as objective=evaluation.loss."


_states: dict[str, SweepState] = {}  # by the sweep's name


@dataclass
class JobOfSweep:
    """A job of a sweep that was composed. folder: the sweep's. in_task: whether submitit has started this process."""

    job: single_run.Composed
    sweep: sweeps.Sweep
    folder: Path
    number: int  # from 0
    jobs: int | None  # of the sweep; None: not known
    label: list[str]
    in_task: bool

    @property
    def record(self) -> Record:
        return self.job.record

    @functools.cached_property
    def job_folder(self) -> Path:
        return run_folder.of_job(self.folder, self.record.config_key, self.label)

    @property
    def is_parallel(self) -> bool:
        return self.record.environment["jobs_at_once"] > 1

    def note(self, status: str, line: str) -> None:
        """Note how the job ended. The command prints the line of a task, whose output is in a file."""
        lines = [line] if self.in_task else []
        self.sweep.note(self.folder, self.number, self.record.config_key, status, lines)


def run_in_sweep(
    composed: DictConfig, hydra_config: HydraConf, sweep: sweeps.Sweep, folder: Path
) -> tuple[str, float | None]:
    """Run one job of a sweep, or print what an earlier command recorded of it. Never raises.

    hydra_config: Hydra's own node of the job. folder: the sweep's. Returns its status, and the number of its record
    that `objective` names; None without an objective or a record.
    """
    in_task = submitit_jobs.enter(sweep)
    if not in_task:
        sweeps.end_with_command(sweep)
        if sweep.is_stopped(folder):
            return "preempted", None
    job, problems = _composed(composed, hydra_config)
    if job is None:
        console.say_problems(problems)
        sweep.note(folder, int(hydra_config.job.num), "", sweeps.INVALID, problems)
        return sweeps.INVALID, None
    jobs, swept = sweeps.count_jobs(sweep)
    job.record.environment |= sweeps.job_environment(hydra_config, jobs)
    label = sweeps.distinguishing_overrides(job.record.overrides, swept)
    job.group = folder.name
    job.differs = label
    entry = JobOfSweep(job, sweep, folder, int(hydra_config.job.num), jobs, label, in_task)
    with submitit_jobs.preemptible(in_task) as requeue:
        if not rank_info.current_rank().is_main:
            return _status_of_other_rank(entry), None
        status, outcome = _run_or_report(entry)
        if status == "preempted":
            requeue()
    if outcome is None or job.cfg.objective is None:
        return status, None
    return status, objective.value(job.cfg, outcome)


def _composed(composed: DictConfig, hydra_config: HydraConf) -> tuple[single_run.Composed | None, list[str]]:
    """(the job, or None and why its command line cannot be used)."""
    try:
        cfg, outcome, problems = compose.prepare(composed, hydra_config, compose.menu_folders(hydra_config))
    except OmegaConfBaseException as error:
        return None, [hydra_errors.explain(error, paths.menus())]
    if cfg is None or outcome is None:
        return None, problems
    if cfg.objective is None and BASIC_SWEEPER not in str(hydra_config.sweeper.get("_target_")):
        return None, [NO_OBJECTIVE]
    return single_run.Composed(cfg, outcome, problems), []


def _status_of_other_rank(entry: JobOfSweep) -> str:
    """Run a rank that is not the first, unless the job need not run. Returns its status."""
    before = sweeps.final_record(entry.job_folder)
    if before is not None:
        return before.status
    return single_run.run_nonzero_rank(entry.record, entry.job.problems)


def _run_or_report(entry: JobOfSweep) -> tuple[str, Record | None]:
    """Run a job that has no final record, and print and note how it ended.

    Returns its status and its record; None where it has none that was written.
    """
    state = _states.setdefault(entry.sweep.name, SweepState(entry.jobs))
    state.began = time.monotonic()
    position = entry.number + 1
    try:
        outcome = sweeps.final_record(entry.job_folder)
        was_done = outcome is not None
        if outcome is None:
            outcome = _run_new(entry, state)
        state.job_ends(ran=not was_done)
        first = state.numbers.setdefault(outcome.config_key, position)
        when = ""
        if was_done:
            when = "done before" if first == position else f"the same as job {first}, not run again"
        line = sweeps.job_line(outcome, position, entry.label, when)
        console.say(line)
        entry.note(outcome.status, line)
    except Refusal as refusal:  # another command holds the lock of the job's folder
        console.say_problems([str(refusal)])
        entry.note("refused", str(refusal))
        return "refused", None
    except OSError as error:
        if isinstance(error, post_mortem.UnwrittenRecord):
            console.say(sweeps.job_line(error.record, position, entry.label))
        problem = single_run.unwritable(error, "hydra.sweep.dir")
        console.say_problems([problem])
        entry.note("failed", problem)
        return "failed", None
    return outcome.status, outcome


def _run_new(entry: JobOfSweep, state: SweepState) -> Record:
    """Run a job without a final record in its folder, from its last checkpoint if it has one. Returns its record."""
    cfg, outcome, job_folder = entry.job.cfg, entry.record, entry.job_folder
    quiet = entry.in_task or entry.is_parallel
    display = console.Console(
        " ".join(entry.label), entry.number + 1, entry.jobs, quiet, state.seconds_left, state.printed
    )
    with run_lock.hold(job_folder, wait=entry.is_parallel):  # for a job of the same options
        finished = sweeps.final_record(job_folder)
        if finished is not None:
            return finished
        unusable = sweeps.unusable_record(job_folder)
        if unusable:
            outcome.warnings.append(unusable)
        sweeps.clear(job_folder, cfg.resume == resume.LATEST)
        if checkpoint_files.in_run(job_folder):
            cfg.resume = outcome.config["resume"] = resume.LATEST
        fork_server = None
        if entry.in_task:
            entry.sweep.note(entry.folder, entry.number, outcome.config_key, sweeps.STARTED, initial_record=outcome)
        elif not entry.job.problems:
            fork_server = sweeps.fork_server()
            if entry.number == 0:
                report.prepare()  # while the fork server imports
        return single_run.run_in(job_folder, entry.job, display, fork_server)


# --- the end -------------------------------------------------------------------------------------------


def conclude(sweep: sweeps.Sweep, folder: Path, statuses: list[str]) -> int:
    """Report a sweep: its table and page, and the jobs without a result. Returns the exit code.

    statuses: of the jobs that this process has run.
    """
    jobs = [job for job in sweep.jobs(folder) if job["status"] != sweeps.STARTED]
    ended = {job["status"] for job in jobs}
    if "failed" in statuses:
        ended.add("failed")
    if sweeps.INVALID in ended:
        return exit_codes.REFUSED
    records: list[Record] = []
    if jobs:
        try:
            records = _report(sweep, folder, jobs)
        except Exception as error:  # the records are complete, and the report can be made from them later
            problem = (
                f"the report could not be made ({type(error).__name__}: {error}). When this is fixed, run "
                f"{invocation.command('report')} {folder}"
            )
            console.say_problems([problem])
            ended.add("failed")
    if any(text.startswith("gpu=glob(") for text in sweep.argv) and ended != {"refused"}:
        ended.discard("refused")  # cards that cannot compute what is asked are rows with their reason
    if sweep.is_stopped(folder):
        statuses = [*statuses, "preempted"]  # of jobs in other processes
    _say_missing(folder, jobs, statuses)
    if "interrupted" in statuses:
        return exit_codes.INTERRUPTED
    if not ended <= sweeps.SUCCESS:
        return 1
    codes = [run.config["launch"].get("preempted_exit_code") or 0 for run in records if run.status == "preempted"]
    return max(codes, default=0)


def _report(sweep: sweeps.Sweep, folder: Path, jobs: list[dict[str, Any]]) -> list[Record]:
    """Make the report of a sweep and print its table. Returns the records of these jobs."""
    with run_lock.hold(folder, wait=True):  # another sweep in this folder may write the same files
        table, files = report.make([folder], folder)
    console.say(screen_table.screen_text(table))
    names = ",".join(path.name for path in files)
    console.say(f"Table, picture and page: {folder}{os.sep}{{{names}}}")
    records = []
    folders = {run_folder.key_in_name(path): path for path in folder.iterdir() if path.is_dir()}
    for job in jobs:
        if job["key"] not in folders:
            continue
        record, _ = sweeps.own_record(folders[job["key"]])
        if record is not None:
            records.append(record)
    if _saves_no_model(sweep, records):
        console.say("No model is saved by the jobs of a sweep. Type save.final=true for those of all of them.")
    if records:
        line = trackers.sweep_line(config.from_dict(records[-1].config), folder)
        if line:
            console.say(line)
    trackers.close()
    return records


def _saves_no_model(sweep: sweeps.Sweep, records: list[Record]) -> bool:
    """Whether a job would have saved its model as a single run, and nobody typed whether to."""
    if any(text.startswith("save.final=") for text in sweep.argv):
        return False
    return any(save.final_by_default(config.from_dict(record.config), in_sweep=False) for record in records)


def _say_missing(folder: Path, jobs: list[dict[str, Any]], statuses: list[str]) -> None:
    """Print the jobs without a result, and what runs those that are missing."""
    without_result = [job for job in jobs if job["status"] not in sweeps.SUCCESS]
    for job in without_result:
        if job["status"] != "refused":  # their reasons stand under the table
            console.say(f"{job['status']}: {run_folder.of_job(folder, job['key'])}")
    was_ended = "interrupted" in statuses or "preempted" in statuses
    if was_ended or any(job["status"] not in sweeps.FINAL for job in without_result):
        console.say(f"The same command with hydra.sweep.dir={folder} runs what is missing.")
