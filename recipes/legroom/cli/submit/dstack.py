"""dstack: a task, of several nodes where there are several machines."""

from legroom.cli.submit import container
from legroom.cli.submit.job import Job
from legroom.cli.submit.settings import Settings
from legroom.units import GIB

FILE = "{name}.dstack.yml"
TAKES = ("image", "volume")
NEEDS = ("image", "volume")
HANDS_OVER = ("dstack", "apply", "--yes", "-f")
IMAGE_GIB = 100  # of a machine's own disk: the system and the image; assumed
RETRIED_FOR = "7d"  # since the last interruption


def text(job: Job, settings: Settings, heading: str) -> str:
    """The file. heading: the comment at its head."""
    resources: dict = {
        "cpu": f"{job.cpus}..",
        "memory": f"{job.memory_gib}GB..",
        "shm_size": f"{job.shm_gib}GB",
        "disk": f"{IMAGE_GIB}GB..",
        "gpu": 0,
    }
    if job.gpus:
        gib = job.device_bytes / GIB
        resources["gpu"] = {
            "vendor": "amd" if job.amd else "nvidia",
            "name": job.gpu_word,
            "memory": f"{int(0.9 * gib)}GB..{int(1.1 * gib) + 1}GB",  # tells the cards of one chip apart
            "count": job.gpus,
        }
    task: dict = {"type": "task", "name": job.name, "nodes": job.machines}
    task |= {"image": settings.image, "shell": "bash", "env": container.environment(job)}
    task["commands"] = [container.script(job, "$DSTACK_NODE_RANK", "$DSTACK_MASTER_NODE_IP")]
    task["resources"] = resources
    path = container.volume_path(job.folder)
    if (settings.volume or "").startswith("/"):
        task["volumes"] = [{"instance_path": settings.volume, "path": path}]
    else:
        task["volumes"] = [{"name": settings.volume, "path": path}]
    task["retry"] = {"on_events": ["no-capacity", "interruption", "error"], "duration": RETRIED_FOR}
    task["stop_duration"] = job.grace_seconds
    return heading + container.document(task)


def check(settings: Settings) -> None:
    """A volume may be a name or a folder of the machines."""


def notes(job: Job, settings: Settings) -> list[str]:
    """What a person has to know of the file."""
    return [
        f"dstack starts again what ends with any other exit code than 0, for {RETRIED_FOR}: also what is refused or "
        "runs out of memory. Stop it with `dstack stop`."
    ]
