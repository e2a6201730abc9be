"""Kubernetes: a JobSet, a pod for each machine, which Kueue starts once there is room for all of them."""

from legroom.cli.submit import container
from legroom.cli.submit.job import PREEMPTED, Job
from legroom.cli.submit.settings import Settings
from legroom.errors import Refusal

FILE = "{name}.jobset.yaml"
TAKES = ("image", "volume", "queue")
NEEDS = ("image", "volume")
HANDS_OVER = ("kubectl", "create", "-f")
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
MACHINES = "machines"  # the name of the JobSet's only replicated job


def text(job: Job, settings: Settings, heading: str) -> str:
    """The file. heading: the comment at its head."""
    if job.amd:
        resource, product = "amd.com/gpu", None
    else:
        resource, product = "nvidia.com/gpu", "nvidia.com/gpu.product"
    sizes: dict[str, int | str] = {"cpu": job.cpus, "memory": f"{job.memory_gib}Gi"}
    pod: dict = {"restartPolicy": "Never", "terminationGracePeriodSeconds": job.grace_seconds}
    if job.gpus:
        sizes[resource] = job.gpus
        pod["tolerations"] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
        if product:  # the label of NVIDIA's GPU feature discovery
            pod["nodeSelector"] = {product: (job.device_name or "").replace(" ", "-")}
    pod["containers"] = [_container(job, settings, sizes)]
    pod["volumes"] = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": settings.volume}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{job.shm_gib}Gi"}},
    ]
    template = {"parallelism": job.machines, "completions": job.machines, "completionMode": "Indexed"}
    template |= {"backoffLimit": 0, "podReplacementPolicy": "Failed"}
    template |= {"podFailurePolicy": {"rules": _rules()}, "template": {"spec": pod}}
    metadata: dict = {"name": job.name}
    if settings.queue:
        metadata["labels"] = {QUEUE_LABEL: settings.queue}
    final = {"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": {"maxRestarts": container.RESTARTS, "rules": [final]},
            "replicatedJobs": [{"name": MACHINES, "replicas": 1, "template": {"spec": template}}],
        },
    }
    return heading + container.document(manifest)


def _rules() -> list[dict]:
    """What follows from a pod's exit code. Any other one fails the job, and the JobSet starts all its pods again."""
    return [
        {"action": "Ignore", "onExitCodes": {"containerName": "train", "operator": "In", "values": [PREEMPTED]}},
        {"action": "FailJob", "onExitCodes": {"containerName": "train", "operator": "In", "values": container.FINAL}},
    ]


def _container(job: Job, settings: Settings, sizes: dict[str, int | str]) -> dict:
    first = f"{job.name}-{MACHINES}-0-0.{job.name}"  # the pod's name in the DNS of the JobSet's own service
    if job.machines == 1:
        command = container.command(job)
    else:
        command = ["bash", "-c", container.script(job, "$JOB_COMPLETION_INDEX", first)]
    return {
        "name": "train",
        "image": settings.image,
        "command": command,
        "env": [{"name": name, "value": value} for name, value in container.environment(job).items()],
        "resources": {"requests": sizes, "limits": sizes},
        "volumeMounts": [
            {"name": "runs", "mountPath": container.volume_path(job.folder)},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def check(settings: Settings) -> None:
    """Raises Refusal for a volume that is no claim."""
    if "/" in (settings.volume or ""):
        raise Refusal(f"--volume {settings.volume}: type the name of a PersistentVolumeClaim of the same namespace.")


def notes(job: Job, settings: Settings) -> list[str]:
    """What a person has to know of the file."""
    mounted_at = container.volume_path(job.folder)
    lines = [
        f"The claim {settings.volume} is mounted at {mounted_at}: with several machines it has to be ReadWriteMany."
    ]
    if job.gpus and not job.amd:
        lines.append("Nodes are chosen by the label nvidia.com/gpu.product of NVIDIA's GPU feature discovery.")
    if not settings.queue:
        lines.append("Without --queue no label of Kueue is written, and pods of one job may wait for each other.")
    return lines
