"""Private state of Accelerate that this project writes, each with its reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import accelerate
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from recipes.third_party.patching import patched


def set_process_device(device: torch.device) -> None:
    """The device that the next Accelerator takes for this process's: PartialState detects it once per process."""
    PartialState._shared_state["device"] = device


def set_accelerator_device(device: torch.device) -> None:
    """The device of an Accelerator that exists. `accelerator.device` is read-only; both states hold a copy."""
    AcceleratorState._shared_state["device"] = PartialState._shared_state["device"] = device


def set_process_multi_gpu(world_size: int) -> None:
    """Make Accelerate take this process for rank 0 of `world_size` on one machine with GPUs.

    PartialState chooses DistributedType.MULTI_GPU only where `torch.cuda` is available.
    """
    PartialState._shared_state |= {
        "distributed_type": DistributedType.MULTI_GPU,
        "process_index": 0,
        "num_processes": world_size,
        "local_process_index": 0,
    }


@contextlib.contextmanager
def replaced_accelerator(accelerator: type[accelerate.Accelerator]) -> Iterator[None]:
    """Inside, `accelerate.Accelerator` is that class."""
    with patched(accelerate, Accelerator=accelerator):
        yield
