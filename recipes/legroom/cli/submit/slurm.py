"""SLURM: a batch script that requeues its job once the run has saved."""

import math
import shlex
from pathlib import Path

from legroom import invocation
from legroom.cli.submit.job import Job
from legroom.cli.submit.settings import Settings
from legroom.errors import Refusal

FILE = "{name}.sbatch"
TAKES = ("queue", "hours")
NEEDS = ()
HANDS_OVER = ("sbatch",)
BODY = Path(__file__).with_name("assets") / "slurm.sh"
HOUR_SECONDS = 3600


def text(job: Job, settings: Settings, heading: str) -> str:
    """The file. heading: the comment at its head."""
    options = {"job-name": job.name, "nodes": job.machines}
    if job.gpus:
        options["gpus-per-node"] = job.gpus
    options |= {"ntasks-per-node": job.ranks, "cpus-per-task": job.cpus // job.ranks, "mem": f"{job.memory_gib}G"}
    seconds = _seconds(job, settings)
    if seconds is not None:
        options["time"] = _clock(seconds)
    if settings.queue:
        options["partition"] = settings.queue
    options |= {"signal": f"B:USR1@{job.grace_seconds}", "requeue": None, "open-mode": "append"}
    options["output"] = f"{job.name}-%j.out"
    lines = ["#!/bin/bash", heading]
    for name, value in options.items():
        lines.append(f"#SBATCH --{name}" if value is None else f"#SBATCH --{name}={value}")
    command = shlex.join([*shlex.split(invocation.command()), *job.training()])
    lines += ["", "set -u", f"folder={shlex.quote(job.folder)}", f"training=({command})", "", BODY.read_text()]
    return "\n".join(lines)


def _seconds(job: Job, settings: Settings) -> float | None:
    """The time of an attempt; None for the partition's own."""
    if settings.hours is not None:
        return settings.hours * HOUR_SECONDS
    if job.seconds is None:
        return None
    return job.seconds + job.grace_seconds


def _clock(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:00"


def check(settings: Settings) -> None:
    """Raises Refusal for a time that is none."""
    if settings.hours is not None and settings.hours <= 0:
        raise Refusal(f"--hours {settings.hours:g}: more than 0.")


def notes(job: Job, settings: Settings) -> list[str]:
    """What a person has to know of the file."""
    lines = []
    if settings.hours is None and job.seconds is not None:
        lines.append(
            "--time is the longest that the estimate foretells for the whole training: type --hours, as the partition "
            "allows them, and the job goes back into the queue when they are over."
        )
    if settings.hours is None and job.seconds is None:
        lines.append("The training's length is not known, so the time limit is the partition's own: --hours sets it.")
    if job.gpus:
        lines.append(f"--gpus-per-node names no kind, which each cluster calls otherwise: {job.device_name} is wanted.")
    return lines
