"""Tensors of the host without values: weights that nobody will read, and copies of what the device did not compute.

A model is built on the host and moved. Its random weights would take minutes and gigabytes; nobody reads them again. So
operations on large floating-point tensors of the host are not computed: their memory is never touched, and takes none.
"""

from __future__ import annotations

import weakref

import torch

from legroom_inside.values import replaced, tensors_of

LARGE = 2**20  # elements of a floating-point tensor that is not computed
FACTORIES = ("empty", "zeros", "ones", "full", "rand", "randn", "new_", "normal", "arange", "linspace", "eye")


def _key(tensor):
    return tensor.untyped_storage()._cdata


class Hollow:
    """Knows the storages of the host that have no values."""

    def __init__(self):
        self._storages = {}

    def holds(self, tensor):
        """Whether the values of a tensor of the host are unknown."""
        if not self._storages or tensor.layout is not torch.strided:
            return False
        return _key(tensor) in self._storages

    def add(self, tensor):
        """The values of this tensor's storage are unknown from now on."""
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = weakref.ref(storage, lambda _: self._storages.pop(key, None))

    def run(self, func, args, kwargs, tensors):
        """(True, the result) of an operation of the host that is not computed; otherwise (False, None)."""
        if any(tensor.device.type != "cpu" or tensor.layout is not torch.strided for tensor in tensors):
            return False, None
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            return False, None
        if tensors:
            return self._run_on(func, args, kwargs, tensors)
        name = func.__name__.partition(".")[0]
        if not name.startswith(FACTORIES) or name.startswith("empty"):
            return False, None
        return self._made(func, args, kwargs, only_floats=True)

    def _run_on(self, func, args, kwargs, tensors):
        large = any(tensor.is_floating_point() and tensor.numel() >= LARGE for tensor in tensors)
        if not large and not any(self.holds(tensor) for tensor in tensors):
            return False, None
        aliases = [argument.alias_info for argument in func._schema.arguments if argument.alias_info]
        if any(alias.is_write for alias in aliases):
            target = tensors[0]
            if not target.is_floating_point() or len(func._schema.returns) != 1:
                return False, None
            self.add(target)
            return True, target
        if aliases:
            return False, None  # a view
        return self._made(func, args, kwargs, only_floats=False)

    def _made(self, func, args, kwargs, only_floats):
        """The result by its shape, which torch infers on its meta device, in memory that is not touched."""

        def change(value):
            if isinstance(value, torch.device):
                return torch.device("meta")
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

        settings = replaced(kwargs, change)
        settings.pop("pin_memory", None)
        if "generator" in settings:
            settings["generator"] = None
        if not tensors_of(args):
            settings["device"] = torch.device("meta")
        try:
            shapes = func(*replaced(args, change), **settings)
        except Exception:  # no rule for the meta device: it is computed
            return False, None
        found = tensors_of((shapes,))
        if not any(each.is_floating_point() and each.numel() >= LARGE for each in found) and only_floats:
            return False, None

        def real(shape):
            made = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype)
            self.add(made)
            return made

        return True, replaced(shapes, real)
