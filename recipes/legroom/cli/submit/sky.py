"""SkyPilot: a managed job, which is started again wherever there are machines."""

from legroom.cli.submit import container
from legroom.cli.submit.job import PREEMPTED, Job
from legroom.cli.submit.settings import Settings
from legroom.errors import Refusal
from legroom.units import GIB

FILE = "{name}.sky.yaml"
TAKES = ("image", "volume")
NEEDS = ("image", "volume")
HANDS_OVER = ("sky", "jobs", "launch", "--yes")
IMAGE_GIB = 100  # of a machine's own disk: the system and the image; assumed
# Chips of which SkyPilot names a card by its memory too: at least so many GiB.
NAMED_BY_MEMORY = {"A100": (60, "A100-80GB"), "V100": (30, "V100-32GB")}


def text(job: Job, settings: Settings, heading: str) -> str:
    """The file. heading: the comment at its head."""
    resources: dict = {
        "cpus": f"{job.cpus}+",
        "memory": f"{job.memory_gib}+",
        "disk_size": IMAGE_GIB,
        "image_id": f"docker:{settings.image}",
        "job_recovery": {"max_restarts_on_errors": container.RESTARTS, "recover_on_exit_codes": [PREEMPTED]},
    }
    if job.gpus:
        resources = {"accelerators": f"{accelerator(job)}:{job.gpus}", **resources}
    task: dict = {"name": job.name, "num_nodes": job.machines, "resources": resources}
    path = container.volume_path(job.folder)
    if _is_bucket(settings):
        task["file_mounts"] = {path: {"source": settings.volume, "mode": "MOUNT"}}
    else:
        task["volumes"] = {path: settings.volume}
    task["envs"] = container.environment(job)
    task["run"] = container.script(job, "$SKYPILOT_NODE_RANK", '$(head -n 1 <<< "$SKYPILOT_NODE_IPS")')
    return heading + container.document(task)


def accelerator(job: Job) -> str:
    """SkyPilot's name of the job's GPU."""
    least_gib, name = NAMED_BY_MEMORY.get(job.chip or "", (0, ""))
    if name and job.device_bytes >= least_gib * GIB:
        return name
    return job.gpu_word


def check(settings: Settings) -> None:
    """Raises Refusal for a volume that is a path."""
    if not _is_bucket(settings) and "/" in (settings.volume or ""):
        raise Refusal(
            f"--volume {settings.volume}: type the name of a volume (sky volumes ls), or a bucket, as s3://mine."
        )


def notes(job: Job, settings: Settings) -> list[str]:
    """What a person has to know of the file."""
    lines = ["SkyPilot has no key for /dev/shm and for the time to save: both are its machines' own."]
    if job.gpus:
        lines.append(f"The GPU is called {accelerator(job)}, its chip's name: compare it with `sky gpus list`.")
    if _is_bucket(settings):
        lines.append("A bucket is slower than a volume, and renames a folder by copying it: checkpoints take longer.")
    return lines


def _is_bucket(settings: Settings) -> bool:
    return "://" in (settings.volume or "")
