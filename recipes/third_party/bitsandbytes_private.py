"""Functions of bitsandbytes that this project replaces, each with its reason."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from bitsandbytes import functional

from recipes.third_party.patching import patched


@contextlib.contextmanager
def replaced_paged_memory(get_paged: Callable[..., Any]) -> Iterator[None]:
    """Inside, paged optimizer states are made by `get_paged(*shape, dtype=, device=)`, not filled and not prefetched.

    bitsandbytes takes their memory from CUDA itself (cudaMallocManaged), below torch.
    """

    def skip(*_: Any, **__: Any) -> None:
        pass

    with patched(functional, get_paged=get_paged, fill=skip, prefetch_tensor=skip):
        yield
