"""A sweep: many jobs into one folder, a fork server for their workers, and what came of each.

A job's folder is named after its `config_key`, so a second sweep into the same folder adds to the
first, and the same sweep runs only what is missing or did not come to a result. Which jobs belong to
the running command is kept in files, because launchers may run them in other processes.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.jobs import fork_client
from recipes.ranks import rank_info
from recipes.records import checkpoint_files, record, record_file
from recipes.third_party import hydra_private

FINAL = {"ok", "oom", "refused"}  # results: not run again
SUCCESS = {"ok", "oom", "preempted"}
JOBS_FOLDER = ".jobs"
# What stands in a job's note and in no record:
INVALID = "misspelt"  # a key that no job knows, so none is run
BEGUN = "begun"  # and not over


@dataclass(frozen=True)
class Sweep:
    """One command's sweep. `name` tells its jobs from those of an earlier command into the same folder.

    words: the command line. pid, started_at: the process that waits for the jobs.
    """

    name: str
    conf: Path
    words: tuple[str, ...] = ()
    pid: int = 0
    started_at: float = 0.0

    def note(self, folder: Path, number: int, key: str, status: str, said: Sequence[str] = (), begun=None) -> None:
        """What has become of a job so far. said: more lines for the screen. begun: its record, before it runs.

        A file for each job, replaced as a whole: where jobs run on several machines, a shared file system
        may lose lines that are appended at once. Of several ranks only the first has something to note.
        """
        if not rank_info.current_rank().is_main:
            return
        place = Path(folder, JOBS_FOLDER, self.name)
        place.mkdir(parents=True, exist_ok=True)
        path, part = place / f"{number}.json", place / f".{number}-{os.getpid()}"
        before = json.loads(path.read_text())["said"] if path.exists() else []  # of a job that was requeued
        note = {
            "job": number,
            "key": key,
            "status": status,
            "said": [*before, *said],
            "record": begun and json.loads(record_file.to_json(begun)),
        }
        part.write_text(json.dumps(note))
        part.replace(path)

    def jobs(self, folder: Path) -> list[dict]:
        """This command's jobs so far, in the order of their numbers."""
        notes = []
        for path in Path(folder, JOBS_FOLDER, self.name).glob("*.json"):
            with contextlib.suppress(OSError):  # just replaced, on another machine
                notes.append(json.loads(path.read_text()))
        return sorted(notes, key=lambda note: note["job"])

    def command_runs(self) -> bool:
        """Whether the process that waits for the jobs is still there. On its own machine only."""
        import psutil

        with contextlib.suppress(psutil.Error):
            command = psutil.Process(self.pid)
            return command.create_time() == self.started_at and command.status() != psutil.STATUS_ZOMBIE
        return False


def new(conf: Path) -> Sweep:
    """A sweep with a name that no other has."""
    import psutil

    return Sweep(
        f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}",
        conf,
        tuple(sys.argv[1:]),
        os.getpid(),
        psutil.Process().create_time(),
    )


def final_record(folder: Path) -> record.Record | None:
    """The record of a job that needs no run again, or None."""
    with contextlib.suppress(OSError, ValueError):
        outcome = record_file.read(folder)
        return outcome if outcome.status in FINAL else None
    return None


def clear(folder: Path, resume: bool = False) -> None:
    """Remove what an unfinished run has left in a folder, which itself stays.

    The checkpoints of a job that was preempted stay, and with `resume` those of any: it goes on from them.
    """
    with contextlib.suppress(OSError, ValueError):
        resume = resume or record_file.read(folder).status == "preempted"
    if resume and checkpoint_files.found(folder):
        return
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def stage(told, jobs: int | None) -> dict:
    """Where a job stands in its sweep: its number, when it started, and how many run side by side.

    told: Hydra's own node of the job. jobs: of the sweep, where that can be known.
    """
    launcher, at_once = told.launcher, 1
    kind = str(launcher.get("_target_", ""))
    if "joblib" in kind:
        at_once = int(launcher.get("n_jobs", 1) or 1)
        if at_once < 0:
            at_once = (os.cpu_count() or 1) + 1 + at_once  # joblib's way of counting from the end
    elif kind.endswith("submitit_launcher.LocalLauncher"):  # all at once; SLURM gives each its own cores and GPUs
        at_once = min(filter(None, [jobs, told.sweeper.get("max_batch_size")]), default=2)
    return {
        "job_number": int(told.job.num),
        "jobs_at_once": at_once,
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    }


def count_jobs(this: Sweep) -> tuple[int | None, set[str]]:
    """(jobs, swept keys) of a command line; None for the jobs where only the sweeper itself can count them."""
    jobs, swept = 1, set()
    for override in hydra_private.parse_overrides(this.words):
        if override.is_sweep_override():
            swept.add(override.get_key_element().lstrip("+"))
            jobs = jobs * len(list(override.sweep_string_iterator())) if jobs and override.is_discrete_sweep() else None
    return jobs, swept


def distinguishing_overrides(overrides: list[str], swept: set[str]) -> list[str]:
    """The overrides that tell a job from the others: the swept ones, or all where none is known to be."""
    return [word for word in overrides if word.lstrip("+").split("=")[0] in swept or not swept]


_fork_servers: list[fork_client.ForkServer] = []


def fork_server() -> fork_client.ForkServer:
    """This process's fork server, started when it is first asked for, and again should it have died."""
    if _fork_servers and not _fork_servers[-1].alive():
        _fork_servers.pop().close()
    if not _fork_servers:
        _fork_servers.append(fork_client.ForkServer())
        atexit.register(_fork_servers[-1].close)
    return _fork_servers[-1]
