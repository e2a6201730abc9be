"""Ray: a program with Ray Train, which starts a worker on each machine, and all of them again after a failure."""

from pathlib import Path

from legroom.cli.submit import container
from legroom.cli.submit.job import PREEMPTED, Job
from legroom.cli.submit.settings import Settings

FILE = "{name}.ray.py"
TAKES = ()
NEEDS = ()
HANDS_OVER = ("ray", "job", "submit", "--no-wait", "--working-dir", ".", "--", "python")
BODY = Path(__file__).with_name("assets") / "ray_train.txt"


def text(job: Job, settings: Settings, heading: str) -> str:
    """The file. heading: the comment at its head."""
    resources = {"CPU": job.cpus, "memory": job.memory_bytes}
    if job.gpus:
        resources["GPU"] = job.gpus
    constants = {
        "NAME": job.name,
        "MACHINES": job.machines,
        "RESOURCES": resources,
        "SPREAD": "STRICT_SPREAD" if job.machines > 1 else "PACK",
        "STORAGE": f"{job.folder}/ray",
        "RESTARTS": container.RESTARTS,
        "PREEMPTED": PREEMPTED,
        "CODES_THAT_STAY": [0, PREEMPTED, *container.FINAL],
    }
    lines = [f"{name} = {value!r}" for name, value in constants.items()]
    script = container.script(job, "$MACHINE", "$FIRST")
    quoted = f'r"""\n{script}"""'
    if '"""' in script:
        quoted = repr(script)
    return "\n".join([heading, *lines, f"SCRIPT = {quoted}", "", BODY.read_text()])


def check(settings: Settings) -> None:
    """Ray has no flags of its own."""


def notes(job: Job, settings: Settings) -> list[str]:
    """What a person has to know of the file."""
    lines = ["Legroom and ray[train] are installed on every machine of the cluster, as `legroom` beside its Python."]
    if job.gpus:
        lines.append(f"The kind of GPU is not named: {job.device_name} is wanted.")
    return lines
