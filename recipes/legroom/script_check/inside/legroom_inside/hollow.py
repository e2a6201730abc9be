"""Tensors of the host without values: weights that nobody will read, and copies of what the device did not compute.

A model is built on the host and moved. Its random weights would take minutes and gigabytes; nobody reads them again. So
operations on large floating-point tensors of the host are not computed: their memory is never touched, and takes none.
"""

from __future__ import annotations

import weakref

import torch

from legroom_inside.values import replaced, tensors_of

LARGE = 2**20  # elements of a floating-point tensor that is not computed
RESHAPES = ("resize_", "set_")  # in place, and so do those with torch's tag inplace_view
OVERWRITES = ("fill_", "zero_", "copy_")
FACTORIES = ("empty", "zeros", "ones", "full", "rand", "randn", "new_", "normal", "arange", "linspace", "eye")


def _key(tensor):
    return tensor.untyped_storage()._cdata


def _is_large(tensor):
    return tensor.is_floating_point() and tensor.numel() >= LARGE


def _fills_its_storage(tensor):
    """Whether writing all of a tensor writes all of its storage; a large one is not worth being computed."""
    size = tensor.numel() * tensor.element_size()
    return not _is_large(tensor) and size == tensor.untyped_storage().nbytes()


def _shape_only(value):
    """A tensor on torch's meta device in place of a tensor, and that device in place of another."""
    if isinstance(value, torch.device):
        return torch.device("meta")
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


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
        if not any(_is_large(tensor) or self.holds(tensor) for tensor in tensors):
            return False, None
        if torch.Tag.inplace_view in func.tags or func.__name__.startswith(RESHAPES):
            return False, None  # it changes a shape, and no number
        if any(argument.alias_info and argument.alias_info.is_write for argument in func._schema.arguments):
            return self._written(func, args, kwargs)
        if any(argument.alias_info for argument in func._schema.arguments):
            return False, None  # a view
        return self._made(func, args, kwargs, only_floats=False)

    def _written(self, func, args, kwargs):
        """An operation that writes to tensors. What is written is unknown where a float that is not computed is read or
        written; whole numbers and truths stay known as long as all that is written to them is."""
        read = []
        written = []
        written_arguments = []
        for index, argument in enumerate(func._schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            if argument.alias_info and argument.alias_info.is_write:
                written_arguments.append(value)
                written += tensors_of((value,))
            else:
                read += tensors_of((value,))
        reads_unknown = any(self.holds(tensor) for tensor in read)
        name = func.__name__.partition(".")[0]
        if name in OVERWRITES and not reads_unknown and _fills_its_storage(written[0]):
            self._storages.pop(_key(written[0]), None)
            return False, None
        writes_unknown = any(
            tensor.is_floating_point() and (tensor.numel() >= LARGE or self.holds(tensor)) for tensor in written
        )
        returns = len(func._schema.returns)
        if not (reads_unknown or writes_unknown) or returns not in (0, len(written_arguments)):
            return False, None
        if "out" in kwargs:
            self._resize(func, args, kwargs)
        for tensor in written:
            self.add(tensor)
        if returns == 0:
            return True, None
        if returns == 1:
            return True, written_arguments[0]
        return True, tuple(written_arguments)

    def _resize(self, func, args, kwargs):
        """Give the tensor that a result is to be written into the shape of the result, as the operation does."""
        out = kwargs["out"]
        if not isinstance(out, torch.Tensor):
            return

        settings = {name: replaced(value, _shape_only) for name, value in kwargs.items() if name != "out"}
        empty = torch.empty(0, dtype=out.dtype, device="meta")
        try:
            shape = func(*replaced(args, _shape_only), **settings, out=empty).shape
        except Exception:  # no rule for the meta device: the shape is taken to be right
            return
        if out.shape != shape:
            out.resize_(shape)

    def _made(self, func, args, kwargs, only_floats):
        """The result by its shape, which torch infers on its meta device, in memory that is not touched."""

        settings = replaced(kwargs, _shape_only)
        settings.pop("pin_memory", None)
        if "generator" in settings:
            settings["generator"] = None
        if not tensors_of(args):
            settings["device"] = torch.device("meta")
        try:
            shapes = func(*replaced(args, _shape_only), **settings)
        except Exception:  # no rule for the meta device: it is computed
            return False, None
        if only_floats and not any(_is_large(shape) for shape in tensors_of((shapes,))):
            return False, None

        def real(shape):
            tensor = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype)
            self.add(tensor)
            return tensor

        return True, replaced(shapes, real)
