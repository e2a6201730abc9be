"""The processes that a script starts to train in: the first is followed, in the script's own process."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import multiprocessing

from legroom.errors import Refusal
from legroom.foresight.places import is_own
from legroom.measure.memory_attribution import OTHER
from legroom.measure.op_flops import tensors_in
from legroom.measure.storage_log import StorageLog
from legroom.third_party import played_private
from legroom.third_party.patching import patched


@contextlib.contextmanager
def first_followed(ranks: int, note: Callable[[str], None]) -> Iterator[None]:
    """Inside, torch.multiprocessing.spawn calls its function here, and so does a Process that gets a rank or a module;
    of several the first. Others are started as they are. ranks: that are followed."""

    started: list[Any] = []

    def runs_here(target: Any, args: tuple) -> bool:
        """Whether a Process trains; it runs here if it is the first."""
        own = is_own(getattr(getattr(target, "__code__", None), "co_filename", "<"))  # a DataLoader's are torch's
        is_rank = own and bool(args) and type(args[0]) is int and (not args[0] or bool(started))  # ranks begin with 0
        if not callable(target) or not (is_rank or any(isinstance(one, torch.nn.Module) for one in args)):
            return False
        started.append(target)
        if len(started) == 1:
            note(f"{getattr(target, '__name__', target)} is taken to train, and runs in the script's own process.")
        if len(started) > 1 and ranks == 1:
            note("the first process that the script starts is followed; the memory of its others is not counted.")
        return True

    with spawning_here(ranks), played_private.processes_here(runs_here, lambda: len(started) == 1):
        yield


def spawning_here(ranks: int) -> contextlib.AbstractContextManager[None]:
    """Inside, torch.multiprocessing.spawn calls its function in this process, as rank 0. ranks: that are followed; 0:
    the script really runs, and only one process that it starts."""

    def spawn(fn: Callable, args: tuple = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any) -> Any:
        if max(ranks, 1) % nprocs:
            raise Refusal(f"torch.multiprocessing.spawn starts {nprocs} processes, {_to_type(nprocs, ranks)}")
        fn(0, *args)
        return None if join else SimpleNamespace(join=lambda *_, **__: True, processes=[])

    return patched(multiprocessing, spawn=spawn, start_processes=spawn)


def check_world_size(asked: int, ranks: int) -> None:
    """Raises Refusal for a process group of another size than that which is followed."""
    if asked not in (-1, ranks):
        raise Refusal(f"init_process_group is asked for world_size={asked}, {_to_type(asked, ranks)}")


def _to_type(asked: int, ranks: int) -> str:
    if not ranks:
        return "and one is measured. Have the script start one."
    return f"and {ranks} {'is' if ranks == 1 else 'are'} followed. Type --gpus {asked} before the script's name."


def batches_in(log: StorageLog, unseen: Callable[[], Any]) -> contextlib.AbstractContextManager:
    """Inside, batches of a DataLoader's own processes stand in the log in their order, and not as they arrive."""

    def seen(batch: Any) -> None:
        for tensor in tensors_in([getattr(batch, "data", batch)]):  # BatchEncoding is no dictionary
            log.record(tensor, OTHER)

    return played_private.seen_when_handed_out(unseen, seen)
