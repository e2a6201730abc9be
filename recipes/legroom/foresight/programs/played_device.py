"""The fake GPU for a whole script: what the script makes on the host without values takes no memory there either.

A model is built on the host and moved. Its weights come from `torch.empty` and are filled at random, or read from a
file; nobody reads them again. So large floating-point tensors that a factory makes on the host have a size and no
memory, like those on the device. Integers and small tensors are real: rows, masks, positions, schedules.
"""

import contextlib
import math
import re
from collections.abc import Hashable
from typing import Any

import torch

from legroom.foresight.fake_gpu.device import CPU, FakeDevice
from legroom.foresight.fake_gpu.fake_storages import is_fake
from legroom.measure.op_flops import tensors_in
from legroom.third_party import torch_private
from legroom.third_party.patching import patched

REAL_ELEMENTS = 2**16  # a floating-point tensor of the host with fewer has its values
# Factories whose result is without values, or has random ones, or all alike.
FACTORIES = re.compile(r"(new_)?(empty|zeros|ones|full)(_strided|_like)?|(rand|randn)(_like)?|normal")


class PlayedDevice(FakeDevice):
    """A FakeDevice whose host has no memory for weights either.

    Inside `loading` the host's tensors are real, and on a GPU its operations are not observed: a training reads its
    rows in other processes.
    """

    unknown_leaves = True
    is_loading = False
    lengths: frozenset[int] = frozenset()  # of the rows that were read
    reads: Any = None  # the iterator that has read the last batch

    def loading(self) -> contextlib.AbstractContextManager:
        return patched(self, is_loading=True)

    def read(self, iterator: Any, batch: Any) -> None:
        """Note how long the rows of a batch are: its largest integer tensor of two dimensions."""
        self.reads = iterator
        found = tensors_in([getattr(batch, "data", batch)])  # BatchEncoding is no dictionary
        lengths = [one.shape[1] for one in found if one.dim() == 2 and not (one.is_nested or one.is_floating_point())]
        self.lengths |= {max(lengths)} if lengths else frozenset()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.device != CPU and str((kwargs or {}).get("device", "")).startswith("cuda"):  # of code below the modes
            kwargs = kwargs | {"device": self.device}
        with torch_private.without_functions():  # a mode of functions may be active: in the backward pass it is
            if self.is_loading and self.device != CPU and not any(map(is_fake, tensors_in((args, kwargs)))):
                with self.observed_by(None):
                    return super().__torch_dispatch__(func, types, args, kwargs)
            return super().__torch_dispatch__(func, types, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: Any, signature: Hashable, tensors: list[torch.Tensor]) -> Any:
        if tensors and kwargs.get("device") is None and all(tensor.is_meta for tensor in tensors):
            return func(*args, **kwargs)  # shapes of the script's own, or of a file that is read later
        name = torch_private.op_name(func)
        large = not self.is_loading and FACTORIES.fullmatch(name) and self._takes_no_memory(func, args, kwargs, tensors)
        if "generator" in kwargs and (large or any(map(is_fake, tensors)) or self.makes_fake(kwargs.get("device"))):
            kwargs = kwargs | {"generator": None}  # it is the host's, and there are no values to draw
        if large:
            kwargs = kwargs | {"device": CPU} | ({"pin_memory": False} if "pin_memory" in kwargs else {})
            return self.pretend(func, args, kwargs, ("host", signature), tensors, CPU)
        return super().run(func, args, kwargs, signature, tensors)

    def _takes_no_memory(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> bool:
        """Whether a factory makes a large floating-point tensor on the host."""
        device = kwargs.get("device")
        like = tensors[0] if tensors else None
        on_host = torch.device(device).type == "cpu" if device is not None else like is None or like.is_cpu
        if not on_host:
            return False
        dtype = kwargs.get("dtype") or (like.dtype if like is not None else torch.get_default_dtype())
        if not dtype.is_floating_point:
            return False
        if like is not None and not torch_private.op_name(func).startswith("new_"):
            return like.numel() >= REAL_ELEMENTS
        sizes = next((each for each in args if isinstance(each, (list, tuple))), ())
        return math.prod(sizes) >= REAL_ELEMENTS if all(isinstance(size, int) for size in sizes) else False
