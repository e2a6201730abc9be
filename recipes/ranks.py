"""Ranks: which process of how many this is, how they find each other, and the few words they exchange."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
from dataclasses import dataclass

LAST_WORDS_SECONDS = 3.0  # what the other ranks have left once one has failed
MEETING = datetime.timedelta(minutes=30)  # how long a rank waits for another, as gloo's own default


@dataclass(frozen=True)
class Place:
    """A process among the ranks of one job. `launched`: a launcher started the ranks, not we.

    address, port: where rank 0 listens, for ranks that are our own.
    """

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    launched: bool = False
    address: str = "127.0.0.1"
    port: int = 0

    @property
    def main(self) -> bool:
        """Whether this is the rank that writes, prints and tracks."""
        return self.rank == 0


def here() -> Place:
    """The place that torchrun, `accelerate launch` or a cluster gave this process; the only one where none did."""
    given = os.environ
    if "MASTER_ADDR" not in given or not (given.get("RANK", "").isdigit() and given.get("WORLD_SIZE", "").isdigit()):
        return Place()
    rank, ranks = int(given["RANK"]), int(given["WORLD_SIZE"])
    return Place(rank, ranks, int(given.get("LOCAL_RANK", rank)), int(given.get("LOCAL_WORLD_SIZE", ranks)), True,
                 given["MASTER_ADDR"], int(given.get("MASTER_PORT", 29500)))  # the port that torch takes, too


# --- in the worker: what needs torch imports it --------------------------------------------------


def settle(place: Place) -> None:
    """Put the place where the libraries look for it."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    if place.ranks == 1 and not place.launched and not place.port:
        return
    os.environ |= {"RANK": str(place.rank), "WORLD_SIZE": str(place.ranks), "LOCAL_RANK": str(place.local_rank),
                   "LOCAL_WORLD_SIZE": str(place.local_ranks), "MASTER_ADDR": place.address,
                   "MASTER_PORT": str(place.port)}
    if not place.launched:  # all on this machine: a host name that leads nowhere must not matter
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")


def join(place: Place, on_gpu: bool, listener: int | None = None) -> None:
    """Meet the other ranks. listener: the open socket on which our own rank 0 listens (no port can be lost to others).

    CPU tensors travel too on a GPU: some words are exchanged without waiting for the device.
    """
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    if place.launched:
        dist.init_process_group(backend, timeout=MEETING)
    else:
        store = dist.TCPStore(place.address, place.port, place.ranks, place.rank == 0, timeout=MEETING,
                              wait_for_workers=False, **({} if listener is None else {"master_listen_fd": listener}))
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.ranks, timeout=MEETING)


def count() -> int:
    """How many ranks train together."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def number() -> int:
    """Which of them this one is."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def barrier() -> None:
    """Wait until all ranks have come here; the device is not waited for."""
    if several():
        ask(False)()


def ask(yes: bool):
    """Ask all ranks at once, without waiting. Returns a function that waits, and says whether any of them said yes."""
    import torch
    import torch.distributed as dist

    answer = torch.tensor(int(yes))  # on the CPU, also beside GPUs: nothing waits for the device
    work = dist.all_reduce(answer, dist.ReduceOp.MAX, async_op=True)

    def heard() -> bool:
        work.wait()
        return bool(answer)

    return heard


def several() -> bool:
    """Whether other ranks train with this one."""
    return count() > 1


def total(numbers, device):
    """Sums over all ranks. numbers: N, each a number or () on the device. Returns (N,) on the device."""
    import torch
    import torch.distributed as dist

    sums = torch.stack([torch.as_tensor(number, dtype=torch.float64, device=device) for number in numbers])
    dist.all_reduce(sums)
    return sums


def mean(loss):
    """The mean over all ranks of a loss, () on the device; itself where there is one rank."""
    import torch.distributed as dist

    if several():
        dist.all_reduce(loss)
        loss = loss / dist.get_world_size()
    return loss


def gathered(thing) -> list:
    """What every rank has, in the order of the ranks, on every rank."""
    import torch.distributed as dist

    if not several():
        return [thing]
    things = [None] * dist.get_world_size()
    dist.all_gather_object(things, thing)
    return things


# --- last words: why a rank ends, for the record that rank 0 writes ---------------------------------

WORDS = "headroom/last words"
PATIENCE_SECONDS = 8.0  # how long a rank that lost contact waits for the one that knows why
LOST = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe", "NCCL",
        "Socket Timeout", "recvValue failed", "sendBytes failed", "Connection was likely closed")


def lost_contact(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone."""
    kind = type(error).__name__
    return kind in ("DistNetworkError", "DistBackendError", "DistStoreError") or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in LOST))


def tell_all(place: Place, words: dict) -> None:
    """Leave the reason for which this rank ends in the store that all ranks share, unless another was first.

    For ranks of a launcher, which have no parent in common. Without a word where the store is gone too.
    """
    with contextlib.suppress(Exception):  # the others may be gone already, and nobody is left to be told
        _store(place).compare_set(WORDS, "", json.dumps(words))


def heard(place: Place, seconds: float) -> dict | None:
    """What some rank left, waited for so long; None if nothing came."""
    import torch.distributed as dist

    try:
        store = _store(place)
        store.wait([WORDS], datetime.timedelta(seconds=seconds))
        return json.loads(store.get(WORDS))
    except (dist.DistError, RuntimeError):  # the time is over, or the store is gone
        return None


def _store(place: Place):
    """A connection of its own: one that waits holds up everything else on it."""
    import torch.distributed as dist

    store = dist.TCPStore(place.address, place.port, None, False, timeout=MEETING, wait_for_workers=False)
    return dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
