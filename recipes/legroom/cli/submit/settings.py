"""What is typed of the cluster, and no configuration knows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The command's flags; None where one was not typed.

    image: of the container. volume: the shared file system. queue: Kueue's, or SLURM's partition. hours: of an attempt.
    """

    image: str | None = None
    volume: str | None = None
    queue: str | None = None
    hours: float | None = None
