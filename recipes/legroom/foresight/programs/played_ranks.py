"""Rank 0 of several: process groups that communicate nothing, whatever backend a script asks for.

The others are taken to have the same: what they send is as large as what this rank sends.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d, fsdp

from legroom.errors import Refusal
from legroom.foresight.fake_gpu.device import FakeDevice
from legroom.foresight.fake_gpu.library_patches import FakeDDP
from legroom.foresight.programs.played_processes import check_world_size
from legroom.third_party import torch_distributed_private
from legroom.third_party.patching import patched


@contextlib.contextmanager
def rank_0_of(ranks: int, fake: FakeDevice) -> Iterator[None]:
    """Inside, `init_process_group` makes this process rank 0 of `ranks`, and collectives return at once."""
    start, group = dist.init_process_group, dist.new_group
    backend = ",".join(f"{kind}:fake" for kind in sorted({"cpu", fake.device.type}))

    def started(*args: Any, **settings: Any) -> None:
        check_world_size(args[3] if len(args) > 3 else settings.get("world_size", -1), ranks)
        store = torch_distributed_private.fake_process_group_store()
        start(backend, store=store, rank=0, world_size=ranks)

    def grouped(ranks: Any = None, timeout: Any = None, *_: Any, **settings: Any) -> Any:
        settings |= {name: None for name in ("backend", "pg_options", "device_id") if name in settings}
        return group(ranks, timeout, **settings)

    def gathered(objects: list, own: Any, *_: Any, **__: Any) -> None:
        objects[:] = [own] * len(objects)

    def gathered_at(own: Any, objects: list | None = None, *_: Any, **__: Any) -> None:
        if objects is not None:
            gathered(objects, own)

    names: dict[str, Callable] = {
        "init_process_group": started,
        "new_group": grouped,
        "all_gather_object": gathered,
        "gather_object": gathered_at,
    }
    names |= dict.fromkeys(("broadcast_object_list", "barrier", "monitored_barrier"), lambda *_, **__: None)
    with (
        patched(dist, is_nccl_available=lambda: True, **names),
        patched(distributed_c10d, is_nccl_available=lambda: True, **names),
        patched(device_mesh, init_process_group=started, new_group=grouped),  # imported there by name
        torch_distributed_private.replaced_ddp(FakeDDP),
        patched(fsdp.FullyShardedDataParallel, __init__=_refuse_fsdp1),
    ):
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _refuse_fsdp1(*_: Any, **__: Any) -> None:
    raise Refusal(
        "FullyShardedDataParallel (FSDP 1) is not followed; torch.distributed.fsdp.fully_shard is, and Accelerate's "
        "fsdp_version: 2."
    )
