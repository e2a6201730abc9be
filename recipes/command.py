"""From the command line to the record: Hydra composes, we check, launch and report. Never imports torch."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from recipes import clusters, config, screen, sweep
from recipes.jobs import fork_client
from recipes.jobs import launch
from recipes.jobs import run_lock
from recipes.jobs import supervise
from recipes.report import report
from recipes.tracking import trackers
from recipes.options import hydra_errors
from recipes.options import resume
from recipes.options import validate
from recipes.records import checkpoint_files
from recipes.records import record
from recipes.ranks import rank_info
from recipes.errors import Refusal
from recipes.options import compose

# One run's exit code by its status; 1 for any other.
EXIT_CODES = {"ok": 0, "preempted": 0, "refused": 2, "oom": 3, "interrupted": 130}
BEHIND_SECONDS = 10.0  # how long a rank that refuses lets rank 0 go first


def run(conf: Path) -> int:
    """Run what the command line says. conf: the folder of the menus. Returns the exit code."""
    code = _run(conf)
    if code == EXIT_CODES["refused"] and not rank_info.current_rank().main:
        time.sleep(BEHIND_SECONDS)  # a launcher ends all ranks as soon as one has gone, and only rank 0 says why
    return code


def _run(conf: Path) -> int:
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises, and we say it in our words
    ConfigStore.instance().store(name="schema", node=config.Config)
    place = rank_info.current_rank()
    if place.launched and {"-m", "--multirun"} & set(sys.argv[1:]):
        screen.say_problems([f"a sweep starts the ranks of each job itself, and a launcher has started {place.ranks} "
                             "already. Type python train.py -m ... parallelism.num_processes="
                             f"{place.ranks} instead, without the launcher."])
        return EXIT_CODES["refused"]
    sys.argv[1:] = spelt_out(sys.argv[1:], place)
    statuses: list[str] = []  # of the jobs in this process; a sweep's are in its file
    this, folder = sweep.new(conf), sweep_folder(sys.argv[1:])

    @hydra.main(version_base="1.3", config_path=str(conf), config_name="config")
    def job(composed) -> str:
        told = HydraConfig.get()
        if told.mode == RunMode.MULTIRUN:
            if {"interrupted", "preempted", sweep.MISSPELT} & set(statuses):  # ends the sweep, not one of its jobs
                return statuses[-1]
            statuses.append(run_in_sweep(composed, told, this, Path(told.sweep.dir).absolute()))
        else:
            statuses.append(run_alone(composed, told, conf))
        return statuses[-1]

    if folder is not None and not any(word.startswith("hydra/launcher=") for word in sys.argv[1:]):
        sweep.nursery()  # its imports take longer than Hydra's part; other launchers run jobs in processes of their own
    try:
        with clusters.followed(this, folder):
            job()
    except KeyboardInterrupt:  # before a job had begun, or between two of them
        statuses.append("interrupted")
    except (HydraException, OmegaConfBaseException) as error:
        screen.say_problems([hydra_errors.explain(error, conf)])
        return EXIT_CODES["refused"]  # nothing has started, also in a sweep
    except ValueError as error:
        if not hydra_errors.raised_by_hydra(error):
            raise
        emptied = [g for g in config.GROUPS if any(w.lstrip("+") in (f"{g}=null", f"{g}=") for w in sys.argv[1:])]
        screen.say_problems([hydra_errors.needs_option(group, [conf]) for group in emptied] or [str(error).strip()])
        return EXIT_CODES["refused"]
    except OSError as error:
        screen.say_problems([_unwritable(error, "hydra.run.dir" if folder is None else "hydra.sweep.dir")])
        return EXIT_CODES["refused"]
    if folder is not None:
        return conclude(this, folder, statuses)
    return EXIT_CODES.get(statuses[-1], 1) if statuses else 0


def spelt_out(words: list[str], place: rank_info.RankInfo = rank_info.RankInfo()) -> list[str]:
    """A sweep's command line with its folder and its repeats said in Hydra's words; any other as it is.

    Only rank 0 makes a folder: the other ranks of a launcher are told to make none.

    `measure.repeats=N` means all jobs once, then all again. Hydra's first swept word changes slowest, so
    the repeat goes in front.
    """
    sweeping = bool({"-m", "--multirun"} & set(words))
    if not sweeping and place.main:
        return words
    first = next((i for i, word in enumerate(words) if "=" in word and not word.startswith("-")), len(words))
    repeats = [word.split("=", 1)[1] for word in words if word.startswith("measure.repeats=")]
    added = []  # beside the first override: the command line's parser wants them all in one place
    if repeats and repeats[-1].isdigit() and int(repeats[-1]) > 1:
        added.append(f"measure.repeat=range({repeats[-1]})")
    if not sweeping:
        # Hydra makes hydra.run.dir; hydra.sweep.dir it only resolves.
        words = [word.replace("hydra.run.dir=", "hydra.sweep.dir=", word.startswith("hydra.run.dir=")) for word in words]
        added = [resume.NO_FOLDER]
    elif sweep_folder(words) is None:
        added.append(f"hydra.sweep.dir=outputs/{datetime.datetime.now():%Y-%m-%d/sweep-%H-%M-%S-%f}")
    return [*words[:first], *added, *words[first:]]


def sweep_folder(words: list[str]) -> Path | None:
    """The sweep's folder that a command line names, or None."""
    named = [word.split("=", 1)[1].strip("'\"") for word in words if word.startswith("hydra.sweep.dir=")]
    return Path(named[-1]).absolute() if named and {"-m", "--multirun"} & set(words) else None


def run_alone(composed, told, conf: Path) -> str:
    """One run, from its composed configuration to the summary on the screen. Returns its status; never raises."""
    try:
        cfg, outcome, problems = compose.prepare(composed, told, compose.menu_folders(told))
    except OmegaConfBaseException as error:
        cfg, problems = None, [hydra_errors.explain(error, conf)]
    if cfg is None:
        screen.say_problems(problems)
        return "refused"
    if cfg.measure.repeats > 1:
        problems.append("measure.repeats runs the jobs of a sweep several times: add -m.")
    fresh = folder = Path(told.runtime.output_dir if rank_info.current_rank().main else told.sweep.dir).absolute()
    if not problems:
        folder = resume.resume_folder(cfg, folder, told.overrides.hydra)
    before = resume.matching_record(cfg, folder) if not problems else None
    done = not problems and resume.is_finished(cfg, folder, before)
    if folder != fresh and rank_info.current_rank().main:
        with contextlib.suppress(OSError):
            fresh.rmdir()  # Hydra has made it, for a run that begins
    if done:
        screen.say(screen.summary(before, folder))
        if resume.model_missing(cfg, folder):
            screen.say(f"save.final: {folder} is finished and left no checkpoint, so there is no model to save.")
        return "ok"
    if cfg.resume == resume.LATEST and not problems:
        problems = resume.mismatch_problems(cfg, checkpoint_files.found(folder))
        if problems:
            screen.say_problems(problems)
            return "refused"
    if before is None and occupied(folder):
        screen.say_problems(problems or [f"{folder} holds another run's record. Choose another folder with "
                                         "hydra.run.dir=, or go on with that training: resume=latest."])
        return "refused"
    if not rank_info.current_rank().main:  # it has seen what rank 0 refuses: nobody may wait for ranks that do not come
        return run_beside(outcome, problems)
    try:
        with run_lock.hold(folder):
            outcome = run_in(folder, cfg, outcome, problems, screen.Screen())
            resume.keep_figures(before, outcome, folder)
    except Refusal as busy:
        screen.say_problems([str(busy)])
        return "refused"
    except OSError as error:
        screen.say_problems([_unwritable(error)])
        return "failed"
    if outcome.status == "refused":
        screen.say_problems(outcome.error.message.splitlines())
    else:
        screen.say(screen.summary(outcome, folder))
    return outcome.status


def run_beside(outcome: record.Record, problems: list[str]) -> str:
    """A rank that was started beside rank 0, which has the folder and the screen. Returns its status."""
    if problems:
        return "refused"
    return supervise.run(launch.Job(outcome, None, rank_info.current_rank()), lambda *_, **__: None).status


def occupied(folder: Path) -> bool:
    """Whether a folder holds a run's record; a refusal trained nothing and may be replaced."""
    try:
        return record.read(folder).status != "refused"
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # not a record that we can read: not ours to overwrite
        return True


def run_in_sweep(composed, told, this: sweep.Sweep, folder: Path) -> str:
    """One job of a sweep, or what an earlier run of it left. Returns its status; never raises."""
    number, in_task = int(told.job.num), clusters.enter(this)
    try:
        cfg, outcome, problems = compose.prepare(composed, told, compose.menu_folders(told))
    except OmegaConfBaseException as error:
        cfg, outcome, problems = None, None, [hydra_errors.explain(error, this.conf)]
    if cfg is None:
        screen.say_problems(problems)
        this.note(folder, number, "", sweep.MISSPELT, problems)
        return sweep.MISSPELT
    jobs, swept = sweep.plan(this)
    outcome.environment |= sweep.stage(told, jobs)
    quiet = in_task or outcome.environment["jobs_at_once"] > 1
    words = sweep.told_apart(outcome.overrides, swept)
    place = folder / outcome.config_key
    with clusters.preemptible(in_task) as requeue:
        if not rank_info.current_rank().main:
            before = sweep.standing(place)
            return before.status if before else run_beside(outcome, problems)
        try:
            before = sweep.standing(place)
            if before is None:
                with run_lock.hold(place):
                    sweep.clear(place, cfg.resume == resume.LATEST)
                    if checkpoint_files.found(place):
                        cfg.resume = outcome.config["resume"] = resume.LATEST
                    if in_task:
                        this.note(folder, number, outcome.config_key, sweep.BEGUN, begun=outcome)
                    display = screen.Screen(" ".join(words), number + 1, jobs, quiet=quiet)
                    nursery = None if problems or in_task else sweep.nursery()
                    if nursery is not None and number == 0:
                        report.prepare()  # while the nursery imports
                    outcome = run_in(place, cfg, outcome, problems, display, nursery, folder.name)
            else:
                outcome = before
            said = screen.line(outcome, number + 1, words, before is not None)
            screen.say(said)
            this.note(folder, number, outcome.config_key, outcome.status, [said] if in_task else [])
        except Refusal as busy:
            screen.say_problems([str(busy)])
            this.note(folder, number, outcome.config_key, "refused", [str(busy)] if in_task else [])
            return "refused"
        except OSError as error:
            screen.say_problems([_unwritable(error, "hydra.sweep.dir")])
            return "failed"
        if outcome.status == "preempted":
            requeue()
    return outcome.status


def run_in(folder: Path, cfg, outcome: record.Record, problems: list[str], display: screen.Screen,
           nursery: fork_client.ForkServer | None = None, group: str | None = None) -> record.Record:
    """Refuse or run a job in its folder. Returns its record. Raises OSError when the folder cannot be written.

    group: the sweep's name, for the tracker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if problems:
        outcome.status, outcome.error = "refused", record.Error("load", "Refusal", "\n".join(problems))
        record.write(outcome, folder)
        return outcome
    Path(folder, record.FILE_NAME).unlink(missing_ok=True)  # of the run that is resumed: it must not pass for the new
    outcome.warnings = validate.warnings(cfg)
    tracker = trackers.open_tracker(cfg, outcome, folder, group)

    def hear(kind, values):
        display.hear(kind, values)
        tracker.hear(kind, values)

    with display:
        for line in outcome.warnings:
            display.warn(line)
        outcome = supervise.run(launch.Job(outcome, folder, rank_info.current_rank()), hear, nursery)
        troubles = tracker.finish(outcome)
    if troubles:
        outcome.warnings += troubles
        record.write(outcome, folder)
    if tracker.line:
        screen.say(tracker.line)
    return outcome


def conclude(this: sweep.Sweep, folder: Path, statuses: list[str]) -> int:
    """The end of a sweep: its table and pictures, which jobs did not come to a result, and the exit code."""
    jobs = [job for job in this.jobs(folder) if job["status"] != sweep.BEGUN]
    ended = {job["status"] for job in jobs} | ({"failed"} if "failed" in statuses else set())
    if sweep.MISSPELT in ended:
        return EXIT_CODES["refused"]
    if jobs:
        try:
            paths = report.make([folder], folder)
            screen.say(report.for_screen([folder]))
            screen.say(f"Table and pictures: {folder}{os.sep}{{{','.join(p.name for p in paths)}}}")
            for text in send_table(jobs, folder):
                screen.say(f"warning: {text}")
        except Exception as error:  # the records are safe, and the report can be made again from them
            screen.say_problems([f"the report could not be made ({type(error).__name__}: {error}). Once that is mended: "
                                 f"python scripts/report.py {folder}"])
            ended.add("failed")
    bad = [job for job in jobs if job["status"] not in sweep.SUCCESS]
    for job in bad:
        screen.say(f"{job['status']}: {folder / job['key']}")
    if {"interrupted", "preempted"} & set(statuses) or any(job["status"] not in sweep.STANDS for job in bad):
        screen.say(f"The same command with hydra.sweep.dir={folder} runs what is missing.")
    if "interrupted" in statuses:
        return EXIT_CODES["interrupted"]
    return 0 if ended <= sweep.SUCCESS else 1


def send_table(jobs: list[dict], folder: Path) -> list[str]:
    """The sweep's table to the tracker that its jobs had. Returns warnings."""
    last = record.read(folder / jobs[-1]["key"])
    try:
        return trackers.log_table(config.from_dict(last.config), folder.name, folder, folder / "results.csv")
    finally:
        trackers.close()


def _unwritable(error: OSError, key: str = "hydra.run.dir") -> str:
    return (f"{error.filename or 'the run folder'} cannot be written: {error.strerror or error}. "
            f"Choose another folder with {key}=.")
