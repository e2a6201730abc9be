"""What every scheduler has to know of a training: the command, the sizes, and how long it takes to save.

The sizes are those of the estimate of the same configuration.
"""

import math
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from legroom import paths, units
from legroom.config import Config
from legroom.foresight import run_parts
from legroom.options import gpu as gpu_options
from legroom.records.record import Record
from legroom.units import GIB

PREEMPTED = 75  # launch.preempted_exit_code: EX_TEMPFAIL of sysexits.h, which none of the other exit codes is
CPUS_BESIDE_WORKERS = 2  # of a rank: its own thread, and one for CUDA, NCCL and the log
HOST_SPARE = 1.2  # of the memory that is requested, over what the estimate counts
SHM_BYTES = GIB  # of a rank: NCCL between the GPUs of a machine, and batches of data.workers; assumed
END_SECONDS = 30  # behind a checkpoint: the record, the page, and the end of the process
LONGEST_NAME = 40  # of a job: Kubernetes takes 63 characters for what it appends to it as well
NOT_OF_TRAININGS = ("gpu", "estimate")  # menus and sections that only an estimate reads


@dataclass(frozen=True)
class Job:
    """A training on a cluster.

    machines, ranks, gpus: how many machines, and ranks and GPUs on each; no GPUs for a training on CPUs.
    memory_bytes: of a machine, with shm_bytes. disk_bytes: of the run's folder. grace_seconds: from the signal to the
    end of the process, with a checkpoint between them. seconds: of the whole training, where its length is known.
    keeps: save.every_steps. menus: what names folders of a person's own menus.
    """

    folder: str
    overrides: tuple[str, ...]
    machines: int
    ranks: int
    gpus: int
    cpus: int
    memory_bytes: int
    shm_bytes: int
    disk_bytes: int
    grace_seconds: int
    seconds: float | None
    keeps: int | None
    chip: str | None = None
    device_name: str | None = None
    device_bytes: int = 0
    amd: bool = False
    menus: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The job's name."""
        return name_of(self.folder)

    @property
    def gpu_word(self) -> str:
        """The GPU's name in one word: its chip's, or that of a variant of the chip, as A10G is of A10."""
        chip = (self.chip or "").replace(" ", "")
        for word in (self.device_name or "").split():
            if word.startswith(chip) and word.isalnum():
                return word
        return chip

    @property
    def memory_gib(self) -> int:
        return math.ceil(self.memory_bytes / GIB)

    @property
    def shm_gib(self) -> int:
        return math.ceil(self.shm_bytes / GIB)

    @property
    def disk_gib(self) -> int:
        return math.ceil(self.disk_bytes / GIB)

    def training(self, *further: str) -> list[str]:
        """The overrides of the command that trains."""
        return [*self.menus, f"hydra.run.dir={self.folder}", "resume=latest", *further, *self.overrides]

    def sizes(self) -> list[str]:
        """The sizes in words, a line each."""
        kind = f"{self.gpus} x {self.device_name}" if self.gpus else "no GPU"
        lines = [f"{units.plural(self.machines, 'machine')}, on each {kind}, {units.plural(self.ranks, 'rank')}"]
        lines.append(
            f"of a machine: {self.memory_gib} GiB of memory ({HOST_SPARE} x the estimate's, and /dev/shm of "
            f"{self.shm_gib} GiB, assumed), {self.cpus} CPUs (assumed)"
        )
        lines.append(f"of the run's folder: {units.size(self.disk_bytes)}, beside data and weights that are downloaded")
        lines.append(
            f"{self.grace_seconds} s from the signal to the end: a step, a checkpoint on a disk of "
            f"{run_parts.DISK[0] / 1e9:g} GB/s (assumed), and {END_SECONDS} s"
        )
        return lines


def name_of(folder: str) -> str:
    """The name of the job of a folder: of letters, digits and dashes, as Kubernetes and DNS want it."""
    words = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(folder).name.lower())
    name = words[:LONGEST_NAME].strip("-")
    if not name[:1].isalpha():
        name = f"run-{name}".strip("-")
    return name


def of(cfg: Config, estimate: Record, folder: str, overrides: list[str]) -> Job:
    """The job of an estimate that fits. cfg: the estimate's configuration, resolved. overrides: as typed."""
    memory, speed = estimate.memory, estimate.speed
    on_gpu = cfg.target.on_gpu
    machines = cfg.gpu.machines if on_gpu else 1
    here = gpu_options.ranks_per_machine(cfg)  # of parallelism=dp the GPUs of its one process
    ranks = 1 if cfg.parallelism.one_process else here
    shm_bytes = here * SHM_BYTES
    checkpoint_bytes = memory.checkpoint_bytes or 0
    save_seconds = run_parts.disk_seconds(checkpoint_bytes)[2]
    step_seconds = speed.step_seconds_high or speed.step_seconds_median or 0.0
    return Job(
        folder=folder,
        overrides=tuple(text for text in overrides if not _of_estimates(text)),
        machines=machines,
        ranks=ranks,
        gpus=here if on_gpu else 0,
        cpus=ranks * (CPUS_BESIDE_WORKERS + (cfg.data.workers or 0)),
        memory_bytes=int(HOST_SPARE * (memory.host_needed_bytes or 0)) + shm_bytes,
        shm_bytes=shm_bytes,
        disk_bytes=max(memory.disk_bytes or 0, checkpoint_bytes),
        grace_seconds=math.ceil(save_seconds + step_seconds) + END_SECONDS,
        seconds=None if estimate.whole_run is None else estimate.whole_run.seconds_high,
        keeps=cfg.save.every_steps,
        chip=cfg.gpu.chip if on_gpu else None,
        device_name=cfg.gpu.device_name if on_gpu else None,
        device_bytes=cfg.gpu.memory_bytes if on_gpu else 0,
        amd=on_gpu and cfg.gpu.is_amd,
        menus=tuple(paths.menus_as_typed()),
    )


def _of_estimates(override: str) -> bool:
    key = override.lstrip("+~").partition("=")[0]
    return key == "recipe" and override.endswith("=estimate") or key.partition(".")[0] in NOT_OF_TRAININGS
