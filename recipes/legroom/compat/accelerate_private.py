"""Private state of Accelerate that this project reads or writes, each with its reason."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import accelerate
import accelerate.accelerator
import accelerate.optimizer
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule

from legroom.compat.patching import patched

# --- training ----------------------------------------------------------------------------------------


def allow_fsdp_on_cpu() -> None:
    """Accelerate uses FSDP only for a process group of GPUs, though FSDP2 runs on any device."""
    device = PartialState().device
    if device is not None and device.type == "cpu":
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def keep_sharded_parameters() -> None:
    """Afterwards an optimizer has its own parameters after `Accelerator.prepare` of a model that is already sharded.

    Accelerate finds the model's parameter for each of the optimizer's by its address, and shards without an element
    all have the address 0: on a rank with several of them, the optimizer would have one of them several times.
    """
    Accelerator._prepare_fsdp2 = _prepare_fsdp2_with_own_parameters  # type: ignore[method-assign]


_prepare_fsdp2 = Accelerator._prepare_fsdp2


def _prepare_fsdp2_with_own_parameters(accelerator: Accelerator, *prepared: Any) -> Any:
    optimizers = [each for each in prepared if isinstance(each, torch.optim.Optimizer)]
    kept = [[list(group["params"]) for group in optimizer.param_groups] for optimizer in optimizers]
    result = _prepare_fsdp2(accelerator, *prepared)
    if not any(isinstance(each, FSDPModule) for each in prepared):  # Accelerate shards it, into other parameters
        return result
    for optimizer, groups in zip(optimizers, kept, strict=True):
        for group, parameters in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = parameters
    return result


def never_postpone_reduction(accelerator: Accelerator) -> None:
    """Afterwards gradients are reduced in every micro-batch. The Trainer asks `accelerator.no_sync` for a context in
    which they are not, and has no setting for it."""
    accelerator.no_sync = lambda *_, **__: contextlib.nullcontext()  # type: ignore[method-assign]


def cache_lomo_check() -> None:
    """`AcceleratedOptimizer.step` looks for the package lomo_optim on the disk twice in each step, which takes half a
    millisecond where it is not installed. Afterwards it takes the answer of this call."""
    installed = accelerate.optimizer.is_lomo_available()
    accelerate.optimizer.is_lomo_available = lambda: installed


def keep_deepspeed_engine(accelerator: Accelerator) -> None:
    """`Trainer.train` calls `accelerator.free_memory` first, which would end the DeepSpeed engine of a training that
    is continued by a second call."""
    accelerator.free_memory = lambda *kept: kept  # type: ignore[method-assign]  (an attribute of this object)


def forward_without_autocast(model: torch.nn.Module) -> Callable:
    """The model's forward pass without the autocast that `Accelerator.prepare` put around it."""
    if not hasattr(model, "_original_forward"):
        return model

    def call(*args: Any, **kwargs: Any) -> Any:  # through the module's call, which runs its hooks
        with patched(model, forward=model._original_forward):
            return model(*args, **kwargs)

    return call


# --- predictions for GPUs that this machine lacks ----------------------------------------------------


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
def state_of_its_own() -> Iterator[None]:
    """Inside, Accelerate's states, of which a process has one each, are fresh; afterwards they are what they were."""
    owners = (PartialState, AcceleratorState, GradientState)
    kept = [dict(owner._shared_state) for owner in owners]
    try:
        for owner in owners:
            owner._shared_state.clear()
        PartialState(cpu=True)
        yield
    finally:
        for owner, before in zip(owners, kept):
            owner._shared_state.clear()
            owner._shared_state.update(before)


def outputs_as_computed() -> contextlib.AbstractContextManager:
    """Inside, a prepared model returns what its forward pass has computed. Accelerate casts that to fp32 for every mode
    but DeepSpeed's."""
    return patched(accelerate.accelerator, convert_outputs_to_fp32=lambda forward: forward)


def replaced_accelerator(accelerator: type[Accelerator]) -> contextlib.AbstractContextManager[None]:
    """Inside, `accelerate.Accelerator` is that class. Code that asks for it by this name constructs the replacement."""
    return patched(accelerate, Accelerator=accelerator)


def launch_environment(line: list[str]) -> dict[str, str]:
    """What `accelerate launch LINE script.py` adds to the environment of the script.

    Private because the checks of the command line, which read the file of configuration, have no public name.
    """
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    typed = launch.launch_command_parser().parse_args([*line, "script.py"])
    arguments, *_ = launch._validate_launch_command(typed)
    several = (arguments.multi_gpu or arguments.use_fsdp or arguments.use_megatron_lm) and not arguments.cpu
    made = prepare_multi_gpu_env(arguments) if several else prepare_simple_launcher_cmd_env(arguments)[1]
    return {name: value for name, value in made.items() if os.environ.get(name) != value}
