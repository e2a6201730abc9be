"""What a job computes on: found once by `machine.host`, when its configuration is resolved or read from a record."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU that a job may use. `capability` is (major, minor); `memory_bytes` the whole device's."""

    uuid: str
    name: str
    memory_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Target:
    """device: 'cuda' or 'cpu'. gpu: the installed one, or the one that an estimate predicts; None on a CPU, and where
    none is known."""

    device: str
    gpu: Gpu | None

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


class HasTarget:
    """The part of a configuration that is no key: nobody types it, and no record holds it."""

    target: Target
