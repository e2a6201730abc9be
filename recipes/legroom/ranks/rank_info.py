"""Which of the job's ranks this process is."""

import datetime
import os
import sys
from dataclasses import dataclass

from legroom.config.menus import Parallelism

RENDEZVOUS_TIMEOUT = datetime.timedelta(minutes=30)  # how long a rank waits for another; gloo's default


@dataclass(frozen=True)
class RankInfo:
    """One rank of a job; the defaults are those of the only rank.

    local_rank, local_world_size: among the ranks on the same machine.
    launched: torchrun, `accelerate launch` or a cluster started the ranks; otherwise the parent of the workers did.
    address, port: where rank 0 listens.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    launched: bool = False
    address: str = "127.0.0.1"
    port: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes, prints and tracks."""
        return self.rank == 0

    @property
    def in_process_group(self) -> bool:
        """Whether the rank joins a process group, which may also be a group of one."""
        return self.launched or self.has_own_store

    @property
    def has_own_store(self) -> bool:
        """Whether the ranks were started by the parent of the workers and meet at a store of rank 0."""
        return not self.launched and (self.world_size > 1 or self.port != 0)


def current_rank() -> RankInfo:
    """The rank that torchrun, `accelerate launch` or a cluster gave to this process; the only one without them."""
    env = os.environ
    if "MASTER_ADDR" not in env or not (env.get("RANK", "").isdecimal() and env.get("WORLD_SIZE", "").isdecimal()):
        return RankInfo()
    rank, world_size = int(env["RANK"]), int(env["WORLD_SIZE"])
    return RankInfo(
        rank,
        world_size,
        local_rank=int(env.get("LOCAL_RANK", rank)),
        local_world_size=int(env.get("LOCAL_WORLD_SIZE", world_size)),
        launched=True,
        address=env["MASTER_ADDR"],
        port=int(env.get("MASTER_PORT", 29500)),  # torch's default
    )


def data_share(parallelism: Parallelism) -> tuple[int, int]:
    """(index, count): this process trains on part `index` of the `count` parts of every batch."""
    rank = current_rank()
    return parallelism.data_share(rank.rank, rank.world_size)


def export_environment(rank_info: RankInfo) -> None:
    """Set the environment variables from which torch, Accelerate and DeepSpeed read the rank."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    if not rank_info.in_process_group:
        return
    os.environ |= {
        "RANK": str(rank_info.rank),
        "WORLD_SIZE": str(rank_info.world_size),
        "LOCAL_RANK": str(rank_info.local_rank),
        "LOCAL_WORLD_SIZE": str(rank_info.local_world_size),
        "MASTER_ADDR": rank_info.address,
        "MASTER_PORT": str(rank_info.port),
    }
    if not rank_info.launched:  # all ranks are on this machine, whose host name may not resolve
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
