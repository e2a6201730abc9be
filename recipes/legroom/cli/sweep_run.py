"""The jobs of a sweep, and its end: the report, the tracker's line and the exit code."""

import os
import time
from pathlib import Path

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
from legroom.records import checkpoint_files
from legroom.records.record import Record
from legroom.report import report, screen_table
from legroom.tracking import trackers

BASIC_SWEEPER = "BasicSweeper"  # Hydra's own, which compares nothing
NO_OBJECTIVE = "this sweeper compares a number of each job's record. Type which one, as objective=evaluation.loss."


def run_in_sweep(
    composed: DictConfig, hydra_config: HydraConf, sweep: sweeps.Sweep, folder: Path
) -> tuple[str, float | None]:
    """Run one job of a sweep, or print what an earlier command recorded of it. Never raises.

    hydra_config: Hydra's own node of the job. folder: the sweep's. Returns its status, and the number of its record
    that `objective` names; None without an objective or a record.
    """
    number, in_task = int(hydra_config.job.num), submitit_jobs.enter(sweep)
    if not in_task:
        sweeps.end_with_command(sweep)
        if sweep.is_stopped(folder):
            return "preempted", None
    try:
        cfg, outcome, problems = compose.prepare(composed, hydra_config, compose.menu_folders(hydra_config))
    except OmegaConfBaseException as error:
        cfg, outcome, problems = None, None, [hydra_errors.explain(error, paths.menus())]
    if cfg is not None and cfg.objective is None and BASIC_SWEEPER not in str(hydra_config.sweeper.get("_target_")):
        cfg, problems = None, [NO_OBJECTIVE]
    if cfg is None or outcome is None:
        console.say_problems(problems)
        sweep.note(folder, number, "", sweeps.INVALID, problems)
        return sweeps.INVALID, None
    jobs, swept = sweeps.count_jobs(sweep)
    outcome.environment |= sweeps.job_environment(hydra_config, jobs)
    label = sweeps.distinguishing_overrides(outcome.overrides, swept)
    state = _states.setdefault(sweep.name, SweepState(jobs))
    state.began = time.monotonic()
    job_folder = folder / outcome.config_key
    with submitit_jobs.preemptible(in_task) as requeue:
        before = sweeps.final_record(job_folder)
        if not rank_info.current_rank().is_main:
            return before.status if before else single_run.run_nonzero_rank(outcome, problems), None
        try:
            if before is None:
                quiet = in_task or outcome.environment["jobs_at_once"] > 1
                display = console.Console(" ".join(label), number + 1, jobs, quiet, state.seconds_left, state.said)
                job = single_run.Composed(cfg, outcome, problems, folder.name, label)
                outcome = _run_new(job, display, sweep, folder, in_task)
            else:
                outcome = before
            state.job_ends(ran=before is None)
            first = state.numbers.setdefault(outcome.config_key, number + 1)
            again = f"the same as job {first}, not run again" if first != number + 1 else "done before"
            line = sweeps.job_line(outcome, number + 1, label, again if before is not None else "")
            console.say(line)
            sweep.note(folder, number, outcome.config_key, outcome.status, [line] if in_task else [])
        except Refusal as refusal:  # another command holds the lock of the job's folder
            console.say_problems([str(refusal)])
            sweep.note(folder, number, outcome.config_key, "refused", [str(refusal)] if in_task else [])
            return "refused", None
        except OSError as error:
            if isinstance(error, post_mortem.UnwrittenRecord):
                console.say(sweeps.job_line(error.record, number + 1, label))
            why = single_run.unwritable(error, "hydra.sweep.dir")
            console.say_problems([why])
            sweep.note(folder, number, outcome.config_key, "failed", [why] if in_task else [])
            return "failed", None
        if outcome.status == "preempted":
            requeue()
    return outcome.status, None if cfg.objective is None else objective.value(cfg, outcome)


def _run_new(
    job: single_run.Composed, display: console.Console, sweep: sweeps.Sweep, folder: Path, in_task: bool
) -> Record:
    """Run a job without a final record in its folder, from its last checkpoint if it has one. Returns its record."""
    cfg, outcome = job.cfg, job.record
    job_folder, number = folder / outcome.config_key, outcome.environment["job_number"]
    with run_lock.hold(job_folder, wait=outcome.environment["jobs_at_once"] > 1):  # for a job of the same options
        if done := sweeps.final_record(job_folder):
            return done
        unusable = sweeps.unusable_record(job_folder)
        outcome.warnings += [unusable] if unusable else []
        sweeps.clear(job_folder, cfg.resume == resume.LATEST)
        if checkpoint_files.found(job_folder):
            cfg.resume = outcome.config["resume"] = resume.LATEST
        if in_task:
            sweep.note(folder, number, outcome.config_key, sweeps.STARTED, initial_record=outcome)
        fork_server = None if job.problems or in_task else sweeps.fork_server()
        if fork_server is not None and number == 0:
            report.prepare()  # while the fork server imports
        return single_run.run_in(job_folder, job, display, fork_server)


_states: dict[str, SweepState] = {}  # by the sweep's name


def conclude(sweep: sweeps.Sweep, folder: Path, statuses: list[str]) -> int:
    """Report a sweep: its table and pictures, and the jobs without a result. Returns the exit code.

    statuses: of the jobs that this process has run.
    """
    jobs = [job for job in sweep.jobs(folder) if job["status"] != sweeps.STARTED]
    ended = {job["status"] for job in jobs} | ({"failed"} if "failed" in statuses else set())
    if sweeps.INVALID in ended:
        return exit_codes.REFUSED
    records: list[Record] = []
    if jobs:
        try:
            with run_lock.hold(folder, wait=True):  # another sweep in this folder may write the same files
                table, paths = report.make([folder], folder)
            console.say(screen_table.screen_text(table))
            console.say(f"Table, picture and page: {folder}{os.sep}{{{','.join(p.name for p in paths)}}}")
            records = [each for job in jobs if (each := sweeps.own_record(folder / job["key"])[0])]
            if _saves_no_model(sweep, records):
                console.say("No model is saved by the jobs of a sweep. Type save.final=true for those of all of them.")
            if records and (line := trackers.sweep_line(config.from_dict(records[-1].config), folder)):
                console.say(line)
            trackers.close()
        except Exception as error:  # the records are complete, and the report can be made from them later
            problem = (
                f"the report could not be made ({type(error).__name__}: {error}). When this is fixed, run "
                f"{invocation.command('report')} {folder}"
            )
            console.say_problems([problem])
            ended.add("failed")
    if any(text.startswith("gpu=glob(") for text in sweep.argv) and ended - {"refused"}:
        ended.discard("refused")  # cards that cannot compute what is asked are rows with their reason
    without_result = [job for job in jobs if job["status"] not in sweeps.SUCCESS]
    for job in without_result:
        if job["status"] != "refused":  # their reasons stand under the table
            console.say(f"{job['status']}: {folder / job['key']}")
    if sweep.is_stopped(folder):
        statuses = [*statuses, "preempted"]  # of jobs in other processes
    if {"interrupted", "preempted"} & set(statuses) or any(j["status"] not in sweeps.FINAL for j in without_result):
        console.say(f"The same command with hydra.sweep.dir={folder} runs what is missing.")
    if "interrupted" in statuses:
        return exit_codes.INTERRUPTED
    if not ended <= sweeps.SUCCESS:
        return 1
    codes = [each.config["launch"].get("preempted_exit_code") or 0 for each in records if each.status == "preempted"]
    return max(codes, default=0)


def _saves_no_model(sweep: sweeps.Sweep, records: list[Record]) -> bool:
    """Whether a job would have saved its model as a single run, and nobody typed whether to."""
    typed = any(text.startswith("save.final=") for text in sweep.argv)
    return not typed and any(save.final_by_default(config.from_dict(each.config), in_sweep=False) for each in records)
