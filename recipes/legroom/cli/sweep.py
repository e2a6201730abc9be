"""A sweep's state: the notes of its jobs, the records of earlier runs, and the fork server for its workers.

The name of a job's folder begins with its `config_key`, and the key alone finds it: a second sweep into the same folder
adds to the first, and the same sweep runs only the jobs that are missing or have no final record. The jobs of a command
are noted in files, because launchers may run them in other processes.
"""

import atexit
import contextlib
import datetime
import functools
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf

from legroom import units
from legroom.compat import hydra_private
from legroom.jobs import fork_client
from legroom.machine.worker_environment import SIMULATIONS
from legroom.ranks import rank_info
from legroom.records import checkpoint_files, record, record_file, run_folder
from legroom.records.printable import printable
from legroom.records.record import Record, shown_status
from legroom.report import predicted

FINAL = {"ok", "oom", "diverged", "refused"}  # results: not run again
SUCCESS = {"ok", "oom", "diverged", "preempted"}
FROM_OUTSIDE = {"preempted", "interrupted", "killed", "timeout"}  # how a job ended that goes on from its checkpoints
JOBS_FOLDER = ".jobs"
STOPPED_FILE = "stopped"  # beside the notes of a command's jobs, once a signal has asked the command to stop
WATCH_SECONDS = 0.5  # between two looks at the command from a process of its jobs
# The statuses that only notes have, and no record:
INVALID = "invalid"  # the command line has a key that does not exist, so no job is run
STARTED = "started"  # the job has started and has not ended


@dataclass(frozen=True)
class Sweep:
    """A command's sweep.

    name: tells its jobs from those of an earlier command into the same folder.
    argv: the command line. pid, started_at: the process that waits for the jobs, and its start in seconds since 1970.
    """

    name: str
    argv: tuple[str, ...] = ()
    pid: int = 0
    started_at: float = 0.0

    def note(
        self,
        folder: Path,
        number: int,
        key: str,
        status: str,
        lines: Sequence[str] = (),
        initial_record: record.Record | None = None,
    ) -> None:
        """Note the state of a job in the sweep's folder.

        key: the job's `config_key`. lines: more lines for the command to print. initial_record: the record of a job
        that starts.

        Each job has a file, which is replaced as a whole: where jobs run on several machines, a shared file system may
        lose lines that two of them append at the same time. Of several ranks only rank 0 writes.
        """
        if not rank_info.current_rank().is_main:
            return
        notes_folder = Path(folder, JOBS_FOLDER, self.name)
        notes_folder.mkdir(parents=True, exist_ok=True)
        path = notes_folder / f"{number}.json"
        note: dict[str, Any] = {"job": number, "key": key, "status": status, "lines": list(lines), "record": None}
        if path.exists():  # of a job that was requeued
            note["lines"] = [*json.loads(path.read_text())["lines"], *lines]
        if initial_record is not None:
            note["record"] = json.loads(record_file.to_json(initial_record))
        part = notes_folder / f".{number}-{os.getpid()}"
        part.write_text(json.dumps(note))
        part.replace(path)

    def jobs(self, folder: Path) -> list[dict[str, Any]]:
        """The notes of this command's jobs so far, in the order of their numbers."""
        notes = []
        for path in Path(folder, JOBS_FOLDER, self.name).glob("*.json"):
            with contextlib.suppress(OSError):  # just replaced, on another machine
                notes.append(json.loads(path.read_text()))
        return sorted(notes, key=lambda note: note["job"])

    def stop(self, folder: Path) -> None:
        """Let no further job of this command begin, in whatever process."""
        notes_folder = Path(folder, JOBS_FOLDER, self.name)
        notes_folder.mkdir(parents=True, exist_ok=True)
        (notes_folder / STOPPED_FILE).touch()

    def is_stopped(self, folder: Path) -> bool:
        """Whether `stop` was called."""
        return Path(folder, JOBS_FOLDER, self.name, STOPPED_FILE).exists()

    def command_runs(self) -> bool:
        """Whether the process that waits for the jobs is alive. To be called on the machine of that process."""
        import psutil

        with contextlib.suppress(psutil.Error):
            command = psutil.Process(self.pid)
            return command.create_time() == self.started_at and command.status() != psutil.STATUS_ZOMBIE
        return False

    def end_with_command(self, number: int) -> None:
        """Send this process a signal when the command has ended, which may have started it without being its parent."""

        def watch() -> None:
            while self.command_runs():
                time.sleep(WATCH_SECONDS)
            os.kill(os.getpid(), number)

        threading.Thread(target=watch, daemon=True).start()


def new() -> Sweep:
    """The sweep of this process, with a unique name."""
    import psutil

    return Sweep(
        f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}",
        tuple(sys.argv[1:]),
        os.getpid(),
        psutil.Process().create_time(),
    )


def final_record(folder: Path) -> record.Record | None:
    """The record in a job's folder if the job need not run again, or None. A record of another job does not count."""
    outcome, _ = own_record(folder)
    if outcome is None or outcome.status not in FINAL:
        return None
    return outcome


def unusable_record(folder: Path) -> str | None:
    """A warning about the file in a job's folder that is not the job's record, or None. The job replaces it."""
    _, reason = own_record(folder)
    if not reason:
        return None
    return printable(f"the record in this job's folder is replaced, since {reason}")


def own_record(folder: Path) -> tuple[record.Record | None, str]:
    """(the job's record in its folder, why what is there is none)."""
    try:
        outcome = record_file.read(folder)
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"it cannot be used: {error}"
    if outcome.config_key != run_folder.key_in_name(folder):
        return None, f"it is that of another job, {outcome.config_key}."
    return outcome, ""


def clear(folder: Path, resume: bool = False) -> None:
    """Empty the folder of an unfinished run.

    A folder with checkpoints is left as it is if the job was ended from outside or its record is damaged, and with
    `resume` in any case: the new run resumes from them.
    """
    own_key = run_folder.key_in_name(folder)
    with contextlib.suppress(OSError):
        try:
            before = record_file.read(folder)
            resume = resume or (before.status in FROM_OUTSIDE and before.config_key == own_key)
        except ValueError:
            resume = True
    if resume and checkpoint_files.in_run(folder):
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def job_environment(hydra_config: HydraConf, jobs: int | None) -> dict[str, Any]:
    """A job's entries for its record's environment: its number, how many jobs run at once, and its start.

    hydra_config: Hydra's own node of the job. jobs: the number of the sweep's jobs, if known.
    """
    return {
        "job_number": int(hydra_config.job.num),
        "jobs_at_once": _jobs_at_once(hydra_config, jobs),
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    }


def _jobs_at_once(hydra_config: HydraConf, jobs: int | None) -> int:
    """How many jobs the launcher runs at the same time on this machine."""
    launcher = hydra_config.launcher
    target = str(launcher.get("_target_", ""))
    if "joblib" in target:
        count = int(launcher.get("n_jobs", 1) or 1)
        if count < 0:
            return (os.cpu_count() or 1) + 1 + count  # joblib counts a negative number from the end
        return count
    if target.endswith("submitit_launcher.LocalLauncher"):  # all at once; SLURM gives each its own cores and GPUs
        bounds = [bound for bound in (jobs, hydra_config.sweeper.get("max_batch_size")) if bound]
        return min(bounds, default=2)
    return 1


def count_jobs(sweep: Sweep) -> tuple[int | None, set[str]]:
    """(number of jobs, swept keys) of a sweep; None as the number if only its sweeper can count them."""
    jobs = 1
    is_known = not any(text.startswith("hydra/sweeper=") for text in sweep.argv)
    swept = set()
    for override in hydra_private.parse_overrides(sweep.argv):
        if not override.is_sweep_override():
            continue
        swept.add(override.get_key_element().lstrip("+"))
        if override.is_discrete_sweep():
            jobs *= len(list(override.sweep_string_iterator()))
        else:
            is_known = False
    return jobs if is_known else None, swept


def distinguishing_overrides(overrides: list[str], swept: set[str]) -> list[str]:
    """The overrides in which a job differs from the others: those of the swept keys, or all if no key is swept."""
    if not swept:
        return overrides
    return [override for override in overrides if override.lstrip("+").split("=")[0] in swept]


@functools.cache
def end_with_command(sweep: Sweep) -> None:
    """Kill this process, and so its workers, when the command of its job ends; joblib would let it live.

    Without effect in the command's own process, and watched once for all jobs of the command.
    """
    if sweep.pid != os.getpid():
        sweep.end_with_command(signal.SIGKILL)


def job_line(outcome: Record, number: int, overrides: list[str], before: str = "") -> str:
    """A job of a sweep in one line. before: when its result was made, if this job did not run."""
    parts = [f"{number:>3}", f"{shown_status(outcome):<13}{' '.join(overrides)}"]
    if outcome.speed.samples_per_second:
        rate = f"{outcome.speed.samples_per_second:.1f}"
        if predicted.step_seconds(outcome) is not None:
            rate = units.two_digits(outcome.speed.samples_per_second)
        parts.append(f"{rate} samples/s")
    used_bytes = outcome.memory.device_used_bytes or outcome.memory.peak_tensor_bytes
    if used_bytes:
        parts.append(units.size(used_bytes))
    if outcome.training.diverged:
        parts.append("the loss is not a number")
    if outcome.error and outcome.status != "refused":  # refusals are printed once for all, under the table
        parts.append(outcome.error.message.splitlines()[0])
    if before:
        parts.append(f"({before})")
    return "  ".join(parts).rstrip()


_fork_servers: list[fork_client.ForkServer] = []


def fork_server() -> fork_client.ForkServer:
    """This process's fork server, which the first call starts. Once it has ended, its jobs run in new processes."""
    if not _fork_servers:
        shared = tempfile.TemporaryDirectory(prefix="legroom-")  # its workers share simulated steps there
        atexit.register(shared.cleanup)
        os.environ[SIMULATIONS] = shared.name  # the server starts with it
        try:
            _fork_servers.append(fork_client.ForkServer())
        finally:
            del os.environ[SIMULATIONS]
        atexit.register(_fork_servers[-1].close)
    return _fork_servers[-1]
