"""Undocumented names of bitsandbytes that this project uses or replaces, each with its reason. Imports bitsandbytes."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from bitsandbytes import functional
from bitsandbytes.optim.optimizer import GlobalOptimManager
from bitsandbytes.utils import sync_gpu

from legroom.compat.patching import patched


def clear_overrides() -> None:
    """Forgets which weights keep 32-bit states. bitsandbytes identifies a weight by its id, which a weight of this
    model may share with a weight of an earlier model in the process."""
    GlobalOptimManager.get_instance().initialize()


def state_buffer(optimizer: Any, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An optimizer state of a weight, filled with zeros; in paged memory where the optimizer would page it."""
    return optimizer.get_state_buffer(weight, dtype=dtype)


def step_of_one_weight(optimizer: Any) -> Callable[[torch.Tensor], None]:
    """The part of an optimizer's `step` that belongs to one weight: (weight) -> None.

    `step` goes over all weights, and finds their settings by their place in the groups.
    """
    places: dict[int, tuple[dict[str, Any], int, int]] = {}
    groups: Any = None

    @torch.no_grad()
    def step(weight: torch.Tensor) -> None:
        nonlocal groups
        if groups is not optimizer.param_groups:  # `load_state_dict` replaces them
            groups = optimizer.param_groups
            for i, group in enumerate(groups):
                places.update({id(each): (group, i, j) for j, each in enumerate(group["params"])})
        if not optimizer.initialized:
            optimizer.check_overrides()
            optimizer.to_gpu()
            optimizer.initialized = True
        group, *index = places[id(weight)]
        if not optimizer.state[weight]:
            optimizer.init_state(group, weight, *index)
        optimizer.prefetch_state(weight)  # nothing for states that are not paged
        optimizer.update_step(group, weight, *index)
        if optimizer.is_paged:  # as `step` does: copies of paged states are asynchronous
            sync_gpu(weight)

    return step


def own_code_tables() -> contextlib.AbstractContextManager[None]:
    """Inside, the table of 8-bit codes that bitsandbytes keeps for the process is another one, and those that an
    optimizer makes have been made already.

    It moves that table to the first device that asks for it, which would be a device without memory. An optimizer that
    is built there would read the numbers of a table that it makes.
    """
    with torch.device("cpu"):  # it reads the numbers that it makes
        codes = {signed: functional.create_dynamic_map(signed) for signed in (True, False)}
    return patched(functional, name2qmap={"dynamic": codes[True]}, create_dynamic_map=lambda signed=True: codes[signed])


def replaced_paged_memory(get_paged: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Inside, paged optimizer states are made by `get_paged(*shape, dtype=, device=)`, not filled and not prefetched.

    bitsandbytes takes their memory from CUDA itself (cudaMallocManaged), below torch.
    """

    def skip(*_: Any, **__: Any) -> None:
        pass

    return patched(functional, get_paged=get_paged, fill=skip, prefetch_tensor=skip)
