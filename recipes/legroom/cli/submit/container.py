"""What runs in a container of an image that has Legroom: for Kubernetes, SkyPilot and dstack."""

import shlex
from pathlib import Path, PurePosixPath

import yaml

from legroom.cli.submit.job import PREEMPTED, Job

ASSETS = Path(__file__).with_name("assets")
RESTARTS = 3  # after an error; as many as a scheduler wants after a preemption
FINAL = [2, 3, 4]  # exit codes of what another attempt would not change: refused, oom, diverged


def command(job: Job) -> list[str]:
    """The command that trains."""
    return ["legroom", "train", *job.training(f"launch.preempted_exit_code={PREEMPTED}")]


def script(job: Job, machine: str, first: str) -> str:
    """A bash script that trains on one of the job's machines.

    machine, first: what the shell knows as the machine's number, and as the address of the first one.
    """
    words = shlex.join(command(job))
    if job.machines == 1:  # the command starts its own ranks
        return f"exec {words}\n"
    variables = f"MACHINES={job.machines} MACHINE={machine} RANKS={job.ranks} PREEMPTED={PREEMPTED}"
    return f"{variables}\nMASTER_ADDR={first}\nset -- {words}\n\n" + (ASSETS / "ranks.sh").read_text()


def volume_path(folder: str) -> str:
    """Where the shared volume is mounted: at the first part of the path of the run's folder."""
    root, first, *_ = PurePosixPath(folder).parts
    return f"{root}{first}"


def environment(job: Job) -> dict[str, str]:
    """Variables of the container: downloads stay on the volume, for the next attempt."""
    return {"HF_HOME": f"{volume_path(job.folder)}/huggingface"}


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, and no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def document(values: dict) -> str:
    """A YAML document, its keys in the order of the dictionary."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
