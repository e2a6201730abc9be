"""Private names of torch that a played GPU (foresight/programs) replaces, each with its reason. Imports torch."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils import _device, checkpoint
from torch.utils.data import dataloader

from legroom.third_party.patching import patched

# What libraries ask torch.cuda below its public functions, and the answers of a machine with one GPU.
OF_CUDA = {"_lazy_init": None, "_is_in_bad_fork": False, "_exchange_device": 0, "_maybe_exchange_device": 0}


def _answer(value: Any, *_: Any, **__: Any) -> Any:
    return value


def observed_loading(loading: Callable, seen: Callable = lambda *_: None) -> AbstractContextManager[None]:
    """Inside, every batch is read in the context `loading()`, and passed to `seen` with its iterator. Iterators of a
    DataLoader have no public class."""
    read = dataloader._BaseDataLoaderIter.__next__

    def observed(iterator: Any) -> Any:
        with loading():
            batch = read(iterator)
            seen(iterator, batch)
        return batch

    return patched(dataloader._BaseDataLoaderIter, __next__=observed)


def seen_when_handed_out(unseen: Callable[[], Any], seen: Callable[[Any], Any]) -> AbstractContextManager[None]:
    """Inside, a batch that a DataLoader's own processes have read is passed to `seen` when the loop receives it.

    It arrives before that, in the context `unseen()`, and may wait for an earlier one: how many do is chance.
    """
    read = dataloader._MultiProcessingDataLoaderIter._next_data

    def handed_out(iterator: Any) -> Any:
        with unseen():
            batch = read(iterator)
        seen(batch)
        return batch

    return patched(dataloader._MultiProcessingDataLoaderIter, _next_data=handed_out)


def dataset_of(iterator: Any) -> tuple[Any, int] | None:
    """The dataset of a DataLoader's iterator and the rows of its next batch, which is left out; None for a dataset
    without indices, and at its end."""
    indexed = iterator._auto_collation and iterator._dataset_kind == dataloader._DatasetKind.Map
    batch = next(iterator._sampler_iter, None) if indexed else None
    return (iterator._dataset, len(batch)) if batch else None


def fetched(iterator: Any, rows: list[int]) -> Any:
    """The batch of these rows of a DataLoader's iterator without processes of its own."""
    return iterator._dataset_fetcher.fetch(rows)


def read_always(iterator: Any, rows: list[int]) -> None:
    """From now on the iterator reads the same rows."""
    iterator._sampler_iter = itertools.repeat(rows)


@contextlib.contextmanager
def cuda_as(device: torch.device, code: Callable, generator: torch.Generator) -> Iterator[None]:
    """Inside, what torch asks below its functions about "cuda" is answered for another device.

    device: the one that stands for cuda. code: makes a TorchFunctionMode, whose `placed` says what stands for a device;
    torch leaves all modes while it runs a backward pass, and hooks and recomputed forward passes are Python code that
    runs there. generator: of the GPU.

    - `torch.device` as a context, and `torch.set_default_device`, pass the device on behind every mode (DeviceContext).
    - autocast's functions know types of devices by name.
    - `torch.Generator("cuda")` is a class of C++ that asks no mode.
    - The mesh of FSDP asks C++ for the accelerator.
    - checkpointing compares what it saved outside of every mode with what it sees in the backward pass, devices too.
    """
    init = _device.DeviceContext.__init__

    def context(self: Any, given: Any) -> None:
        init(self, code().placed(torch.device(given)))

    def of_type(function: Callable) -> Callable:
        @functools.wraps(function)
        def asked(device_type: Any = None, *args: Any) -> Any:
            if isinstance(device_type, bool):  # set_autocast_enabled(True) means CUDA
                device_type, args = None, (device_type,)
            return function(device.type if device_type in (None, "cuda") else device_type, *args)

        return asked

    def backward(run: Callable) -> Callable:
        @functools.wraps(run)
        def passed(*args: Any, **settings: Any) -> Any:
            with code():
                return run(*args, **settings)

        return passed

    compared = {"default": lambda tensor: {"shape": tensor.shape, "dtype": tensor.dtype}}
    checks = checkpoint._allowed_determinism_checks_to_fns
    asking = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")
    here, graph = torch.autograd, torch.autograd.graph
    with (
        patched(_device.DeviceContext, __init__=context),
        patched(torch, **{name: of_type(getattr(torch, name)) for name in asking}),
        patched(torch, get_autocast_gpu_dtype=lambda: torch.get_autocast_dtype("cuda")),
        patched(here, _engine_run_backward=backward(here._engine_run_backward)),
        patched(graph, _engine_run_backward=backward(graph._engine_run_backward)),
        patched(torch, Generator=_generators(torch.Generator)),
        patched(checkpoint, _allowed_determinism_checks_to_fns=checks | compared),
        patched(torch.cuda, **{name: functools.partial(_answer, value) for name, value in OF_CUDA.items()}),
        patched(torch._C, _get_accelerator=functools.partial(_answer, torch.device("cuda"))),
        patched(torch.cuda, default_generators=(generator,)),
    ):
        yield


def _generators(kind: type) -> Any:
    """`torch.Generator` that makes one of the host's for every device."""

    class Kind(type(kind)):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, kind)

    class Generator(kind, metaclass=Kind):
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, device="cpu")

    return Generator


def processes_here(is_here: Callable[[Any, tuple], bool], runs: Callable[[], bool]) -> AbstractContextManager[None]:
    """Inside, a Process of which is_here(target, arguments) is true starts none: its target is called in this one where
    `runs()` says so, and it has ended then. A Process tells nobody its target and arguments, and `run` deletes nothing.
    """
    start = BaseProcess.start

    def begin(process: Any) -> None:
        if not is_here(process._target, (*process._args, *process._kwargs.values())):
            return start(process)
        for name in ("join", "terminate", "kill", "close"):
            setattr(process, name, functools.partial(_answer, None))
        process.is_alive = functools.partial(_answer, False)
        if runs():
            process.run()

    return patched(BaseProcess, start=begin)
