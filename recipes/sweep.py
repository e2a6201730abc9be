"""A sweep: many jobs into one folder, a nursery for their workers, and what came of each.

A job's folder is named after its `config_key`, so a second sweep into the same folder adds to the
first, and the same sweep runs only what is missing or did not come to a result. Which jobs belong to
the running command is kept in a file, because launchers may run them in other processes.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from recipes import checkpoint, launch, record

STANDS = {"ok", "oom", "refused"}  # results: not run again
SUCCESS = {"ok", "oom", "preempted"}
JOBS_FILE = ".jobs.jsonl"
MISSPELT = "misspelt"  # in the jobs' file only: a key that no job knows, so none is run


@dataclass(frozen=True)
class Sweep:
    """One command's sweep. `name` tells its jobs from those of an earlier command into the same folder."""

    name: str
    conf: Path

    def note(self, folder: Path, number: int, key: str, status: str) -> None:
        """A job is over (or needed no run)."""
        line = json.dumps({"sweep": self.name, "folder": str(folder), "job": number, "key": key, "status": status})
        with open(Path(folder, JOBS_FILE), "a") as file:
            file.write(line + "\n")

    def jobs(self, folder: Path) -> list[dict]:
        """This command's jobs so far, in the order of their numbers."""
        with contextlib.suppress(OSError):
            lines = map(json.loads, Path(folder, JOBS_FILE).read_text().splitlines())
            return sorted((line for line in lines if line["sweep"] == self.name), key=lambda line: line["job"])
        return []


def new(conf: Path) -> Sweep:
    """A sweep with a name that no other has."""
    return Sweep(f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}", conf)


def settled(folder: Path, resume: bool = False) -> record.Record | None:
    """The record of a job that needs no run again; otherwise None, and what an unfinished run left is cleared.

    The checkpoints of a job that was preempted stay, and with `resume` those of any: it goes on from them.
    """
    with contextlib.suppress(OSError, ValueError):
        outcome = record.read(folder)
        if outcome.status in STANDS:
            return outcome
        resume = resume or outcome.status == "preempted"
    if folder.exists() and not (resume and checkpoint.found(folder)):
        shutil.rmtree(folder)
    return None


def stage(told) -> dict:
    """Where a job stands in its sweep: its number, when it started, and how many run side by side.

    told: Hydra's own node of the job.
    """
    launcher = told.launcher
    at_once = int(launcher.get("n_jobs", 1) or 1) if "joblib" in str(launcher.get("_target_", "")) else 1
    if at_once < 0:
        at_once = (os.cpu_count() or 1) + 1 + at_once  # joblib's way of counting from the end
    return {"job_number": int(told.job.num), "jobs_at_once": at_once,
            "started_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")}


def plan(words: list[str], config_loader) -> tuple[int | None, set[str]]:
    """(jobs, swept keys) of a command line; None for the jobs where only the sweeper itself can count them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    jobs, swept = 1, set()
    for override in OverridesParser.create(config_loader=config_loader).parse_overrides(words):
        if override.is_sweep_override():
            swept.add(override.get_key_element().lstrip("+"))
            jobs = jobs * len(list(override.sweep_string_iterator())) if jobs and override.is_discrete_sweep() else None
    return jobs, swept


_nurseries: list[launch.Nursery] = []


def nursery() -> launch.Nursery:
    """This process's nursery, started when it is first asked for, and again should it have died."""
    if _nurseries and not _nurseries[-1].alive():
        _nurseries.pop().close()
    if not _nurseries:
        _nurseries.append(launch.Nursery())
        atexit.register(_nurseries[-1].close)
    return _nurseries[-1]
