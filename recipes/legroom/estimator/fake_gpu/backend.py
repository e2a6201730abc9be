"""The fake GPU as a torch backend: the device type "fakecuda", its module, and the kernels that torch calls directly.

torch reserves the dispatch key PrivateUse1 for backends outside its source tree.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom.compat.torch_backend_private import BackendModule, overload, register_backend
from legroom.estimator.fake_gpu import error_guard
from legroom.estimator.fake_gpu.fake_storages import DEVICE_TYPE

# torch.tensor and process groups call these below every dispatch mode, so the device needs kernels for them.
KERNELS = ("empty.memory_format", "empty_strided", "copy_", "as_strided", "view", "_reshape_alias", "zero_")
# One kernel on CUDA, and several operations on a device that has none: with their temporaries.
KERNELS += ("silu_backward", "mish_backward", "native_channel_shuffle")


class Stream:
    """A stream, and an event on one. Nothing runs, so everything is done as soon as it is asked for.

    number: 0 for the default stream. CUDA's allocator keeps apart what was allocated on different streams.
    """

    _numbers = itertools.count(1)

    def __init__(self, *_: Any, **__: Any):
        self.number = next(self._numbers)

    def _return_at_once(self, *_: Any) -> None:
        pass

    wait_event = wait_stream = synchronize = record = wait = _return_at_once

    def record_event(self, *_: Any) -> Stream:
        return self

    def query(self) -> bool:
        """Everything is done."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Milliseconds between two events: what a number that nobody has computed is taken as."""
        return 1.0


class _Backend(BackendModule):
    """The device's module, as `torch.cuda` is CUDA's."""

    Stream = Event = Stream
    in_use = False

    def __init__(self) -> None:
        super().__init__()
        self._current = self._default = Stream()
        self._default.number = 0

    def is_available(self) -> bool:
        """Only within a simulation: nn.DataParallel takes any device that is available."""
        return self.in_use

    def current_stream(self, *_: Any) -> Stream:
        return self._current

    def default_stream(self, *_: Any) -> Stream:
        return self._default

    @contextlib.contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        """Inside, tensors are allocated on a stream; None: on the one that they are allocated on anyway."""
        outer = self._current
        self._current = stream or outer
        try:
            yield
        finally:
            self._current = outer

    def set_device(self, _: Any) -> None:
        """There is one device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        """Nothing is drawn."""
        return torch.empty(0, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, *_: Any) -> None:
        """Nothing is drawn."""

    def empty_cache(self) -> None:
        """Nothing is cached."""


MODULE = _Backend()


@functools.cache
def register() -> None:
    """Make `torch.device("fakecuda")` known for the rest of the process."""
    register_backend(DEVICE_TYPE, MODULE, error_guard.ErrorGuard())


def kernels(compute: Callable) -> dict[str, Callable]:
    """Operator name -> kernel. compute(func, *args, **kwargs): returns the result of an operation."""
    return {name: functools.partial(compute, overload(name)) for name in KERNELS}
