"""Ranks: which process of how many this is, how they find each other, and the few words they exchange."""

from __future__ import annotations

import datetime

from recipes.ranks import rank_info

RENDEZVOUS_TIMEOUT = datetime.timedelta(minutes=30)  # how long a rank waits for another, as gloo's own default


def init_process_group(place: rank_info.RankInfo, on_gpu: bool, listener: int | None = None) -> None:
    """Meet the other ranks. listener: the open socket on which our own rank 0 listens (no port can be lost to others).

    CPU tensors travel too on a GPU: some words are exchanged without waiting for the device.
    """
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    if place.launched:
        dist.init_process_group(backend, timeout=RENDEZVOUS_TIMEOUT)
    else:
        store = dist.TCPStore(
            place.address,
            place.port,
            place.world_size,
            place.rank == 0,
            timeout=RENDEZVOUS_TIMEOUT,
            wait_for_workers=False,
            **({} if listener is None else {"master_listen_fd": listener}),
        )
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.world_size, timeout=RENDEZVOUS_TIMEOUT
        )


def world_size() -> int:
    """How many ranks train together."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank_index() -> int:
    """Which of them this one is."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def barrier() -> None:
    """Wait until all ranks have come here; the device is not waited for."""
    if is_distributed():
        any_rank(False)()


def any_rank(yes: bool):
    """Ask all ranks at once, without waiting. Returns a function that waits, and says whether any of them said yes."""
    import torch
    import torch.distributed as dist

    answer = torch.tensor(int(yes))  # on the CPU, also beside GPUs: nothing waits for the device
    work = dist.all_reduce(answer, dist.ReduceOp.MAX, async_op=True)

    def heard() -> bool:
        work.wait()
        return bool(answer)

    return heard


def is_distributed() -> bool:
    """Whether other ranks train with this one."""
    return world_size() > 1


def all_reduce_sum(numbers, device):
    """Sums over all ranks. numbers: N, each a number or () on the device. Returns (N,) on the device."""
    import torch
    import torch.distributed as dist

    sums = torch.stack([torch.as_tensor(number, dtype=torch.float64, device=device) for number in numbers])
    dist.all_reduce(sums)
    return sums


def all_reduce_mean(loss):
    """The mean over all ranks of a loss, () on the device; itself where there is one rank."""
    import torch.distributed as dist

    if is_distributed():
        dist.all_reduce(loss)
        loss = loss / dist.get_world_size()
    return loss


def all_gather(thing) -> list:
    """What every rank has, in the order of the ranks, on every rank."""
    import torch.distributed as dist

    if not is_distributed():
        return [thing]
    things = [None] * dist.get_world_size()
    dist.all_gather_object(things, thing)
    return things
