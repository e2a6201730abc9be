"""Which rank of how many this process is."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class RankInfo:
    """A process among the ranks of one job. `launched`: a launcher started the ranks, not we.

    address, port: where rank 0 listens, for ranks that are our own.
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
        """Whether this is the rank that writes, prints and tracks."""
        return self.rank == 0


def current_rank() -> RankInfo:
    """The place that torchrun, `accelerate launch` or a cluster gave this process; the only one where none did."""
    given = os.environ
    if "MASTER_ADDR" not in given or not (given.get("RANK", "").isdigit() and given.get("WORLD_SIZE", "").isdigit()):
        return RankInfo()
    rank, ranks = int(given["RANK"]), int(given["WORLD_SIZE"])
    return RankInfo(
        rank,
        ranks,
        int(given.get("LOCAL_RANK", rank)),
        int(given.get("LOCAL_WORLD_SIZE", ranks)),
        True,
        given["MASTER_ADDR"],
        int(given.get("MASTER_PORT", 29500)),
    )  # the port that torch takes, too


# --- in the worker: what needs torch imports it --------------------------------------------------


def export_environment(place: RankInfo) -> None:
    """Put the place where the libraries look for it."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    if place.world_size == 1 and not place.launched and not place.port:
        return
    os.environ |= {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
    }
    if not place.launched:  # all on this machine: a host name that leads nowhere must not matter
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
