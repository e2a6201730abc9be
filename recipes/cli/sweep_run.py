"""The jobs of a sweep, and its end."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from recipes import config
from recipes.cli import console, single_run, submitit_jobs, summary, sweep
from recipes.errors import Refusal
from recipes.jobs import run_lock
from recipes.options import compose, hydra_errors, resume
from recipes.ranks import rank_info
from recipes.records import checkpoint_files, record_file
from recipes.report import report
from recipes.tracking import trackers


def run_in_sweep(composed, told, this: sweep.Sweep, folder: Path) -> str:
    """One job of a sweep, or what an earlier run of it left. Returns its status; never raises."""
    number, in_task = int(told.job.num), submitit_jobs.enter(this)
    try:
        cfg, outcome, problems = compose.prepare(composed, told, compose.menu_folders(told))
    except OmegaConfBaseException as error:
        cfg, outcome, problems = None, None, [hydra_errors.explain(error, this.conf)]
    if cfg is None:
        console.say_problems(problems)
        this.note(folder, number, "", sweep.INVALID, problems)
        return sweep.INVALID
    jobs, swept = sweep.count_jobs(this)
    outcome.environment |= sweep.stage(told, jobs)
    quiet = in_task or outcome.environment["jobs_at_once"] > 1
    words = sweep.distinguishing_overrides(outcome.overrides, swept)
    place = folder / outcome.config_key
    with submitit_jobs.preemptible(in_task) as requeue:
        if not rank_info.current_rank().is_main:
            before = sweep.final_record(place)
            return before.status if before else single_run.run_nonzero_rank(outcome, problems)
        try:
            before = sweep.final_record(place)
            if before is None:
                with run_lock.hold(place):
                    sweep.clear(place, cfg.resume == resume.LATEST)
                    if checkpoint_files.found(place):
                        cfg.resume = outcome.config["resume"] = resume.LATEST
                    if in_task:
                        this.note(folder, number, outcome.config_key, sweep.BEGUN, begun=outcome)
                    display = console.Console(" ".join(words), number + 1, jobs, quiet=quiet)
                    fork_server = None if problems or in_task else sweep.fork_server()
                    if fork_server is not None and number == 0:
                        report.prepare()  # while the fork server imports
                    outcome = single_run.run_in(place, cfg, outcome, problems, display, fork_server, folder.name)
            else:
                outcome = before
            said = summary.job_line(outcome, number + 1, words, before is not None)
            console.say(said)
            this.note(folder, number, outcome.config_key, outcome.status, [said] if in_task else [])
        except Refusal as busy:
            console.say_problems([str(busy)])
            this.note(folder, number, outcome.config_key, "refused", [str(busy)] if in_task else [])
            return "refused"
        except OSError as error:
            console.say_problems([single_run.unwritable(error, "hydra.sweep.dir")])
            return "failed"
        if outcome.status == "preempted":
            requeue()
    return outcome.status


def conclude(this: sweep.Sweep, folder: Path, statuses: list[str]) -> int:
    """The end of a sweep: its table and pictures, which jobs did not come to a result, and the exit code."""
    jobs = [job for job in this.jobs(folder) if job["status"] != sweep.BEGUN]
    ended = {job["status"] for job in jobs} | ({"failed"} if "failed" in statuses else set())
    if sweep.INVALID in ended:
        return single_run.EXIT_CODES["refused"]
    if jobs:
        try:
            paths = report.make([folder], folder)
            console.say(report.for_screen([folder]))
            console.say(f"Table and pictures: {folder}{os.sep}{{{','.join(p.name for p in paths)}}}")
            for text in send_table(jobs, folder):
                console.say(f"warning: {text}")
        except Exception as error:  # the records are safe, and the report can be made again from them
            console.say_problems(
                [
                    f"the report could not be made ({type(error).__name__}: {error}). Once that is mended: "
                    f"python scripts/report.py {folder}"
                ]
            )
            ended.add("failed")
    bad = [job for job in jobs if job["status"] not in sweep.SUCCESS]
    for job in bad:
        console.say(f"{job['status']}: {folder / job['key']}")
    if {"interrupted", "preempted"} & set(statuses) or any(job["status"] not in sweep.FINAL for job in bad):
        console.say(f"The same command with hydra.sweep.dir={folder} runs what is missing.")
    if "interrupted" in statuses:
        return single_run.EXIT_CODES["interrupted"]
    return 0 if ended <= sweep.SUCCESS else 1


def send_table(jobs: list[dict], folder: Path) -> list[str]:
    """The sweep's table to the tracker that its jobs had. Returns warnings."""
    last = record_file.read(folder / jobs[-1]["key"])
    try:
        return trackers.log_table(config.from_dict(last.config), folder.name, folder, folder / "results.csv")
    finally:
        trackers.close()
