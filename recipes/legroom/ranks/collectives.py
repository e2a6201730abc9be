"""Process group and collectives: how the ranks of a training find each other, and what they exchange."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from legroom.ranks.rank_info import RENDEZVOUS_TIMEOUT, RankInfo


def init_process_group(rank_info: RankInfo, on_gpu: bool, listener: int | None = None) -> None:
    """Join the process group: NCCL for GPU tensors, and gloo for CPU tensors, which do not wait for the device.

    listener: for rank 0 of ranks that the parent started, the open socket on which it listens. The parent has bound
    it, so no other process can take the port in between.
    """
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    if rank_info.launched:
        dist.init_process_group(backend, timeout=RENDEZVOUS_TIMEOUT)
        return
    store = dist.TCPStore(  # type: ignore[reportPrivateImportUsage]  (documented, but missing from __all__)
        rank_info.address,
        rank_info.port,
        rank_info.world_size,
        rank_info.is_main,
        timeout=RENDEZVOUS_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listener,
    )
    dist.init_process_group(
        backend, store=store, rank=rank_info.rank, world_size=rank_info.world_size, timeout=RENDEZVOUS_TIMEOUT
    )


def world_size() -> int:
    """The number of ranks that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank_index() -> int:
    """The number of this rank, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_distributed() -> bool:
    """Whether other ranks train with this one."""
    return world_size() > 1


def barrier() -> None:
    """Wait for all ranks, but not for the device."""
    if is_distributed():
        any_rank(False)()


def any_rank(*values: bool) -> Callable[[], list[bool]]:
    """Start a logical OR of each value over all ranks. Returns a function that waits for the results and returns
    them."""
    flags = torch.tensor([int(value) for value in values])  # on the CPU, so that the device is not waited for
    work = dist.all_reduce(flags, dist.ReduceOp.MAX, async_op=True)

    def results() -> list[bool]:
        work.wait()  # type: ignore[union-attr]  (None only without async_op)
        return [bool(flag) for flag in flags]

    return results


def all_reduce_sum(numbers: Sequence, device: torch.device | str) -> torch.Tensor:
    """Sums over all ranks, (N,) float64 on the device. numbers: N, each a number or a tensor () on the device."""
    sums = torch.stack([torch.as_tensor(number, dtype=torch.float64, device=device) for number in numbers])
    dist.all_reduce(sums)
    return sums


def all_reduce_mean(loss: torch.Tensor) -> torch.Tensor:
    """The mean over all ranks of a loss, () on the device; the loss itself if there is one rank."""
    if is_distributed():
        dist.all_reduce(loss)
        loss = loss / dist.get_world_size()
    return loss


def all_gather(value: Any) -> list:
    """The values of all ranks, in the order of the ranks, on every rank. value: anything that can be pickled."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
