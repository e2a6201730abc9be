"""Records what the device is given to do: every operation below autograd passes through the mode `Recorder`."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom_inside import device, imports, ranks, values
from legroom_inside.storages import BACKWARD, COPY, FORWARD, PARAMETER, held_tensors
from legroom_inside.values import aten, tensors_of

PLAIN = (torch.Tensor, torch.nn.Parameter)
SHORT = (torch.dtype, torch.device, torch.layout, torch.memory_format)  # arguments that a word describes


def _acts_itself(kind):
    """Whether a class of tensors handles operations itself, as DTensor does."""
    return kind not in PLAIN and getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


class Recorder(TorchDispatchMode):
    """log: of storages. known: the values of tensors. host: the hollow tensors of the host. is_real: everything is
    computed, and only recorded.

    operations: once `counts_operations` is set, {(phase, module, call): times} of a step; `call` describes an operation
    and its arguments.
    """

    supports_higher_order_operators = True

    def __init__(self, log, known, host, decisions, is_real=False):
        super().__init__()
        self.launches = device.Launches()
        self.is_real = is_real
        self.log = log
        self.known = known
        self.host = host
        self.decisions = decisions
        self.counts_operations = False
        self.operations = {}

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(_acts_itself(kind) for kind in types):
            if any(kind.__name__ in ("FakeTensor", "FunctionalTensor") for kind in types):
                return func(*args, **kwargs)
            return NotImplemented
        if isinstance(func, torch._ops.HigherOrderOperator):
            return func(*args, **kwargs)  # what it is made of is not seen; its memory is
        imports.catch_up()
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        tensors = tensors_of(args)
        if kwargs:
            tensors += tensors_of(kwargs.values())
        if self.is_real:
            for tensor in tensors:
                self.log.record(tensor)
            result = func(*args, **kwargs)
            self._note(func, args, kwargs, tensors, result, follows=False)
            return result
        if func is aten._local_scalar_dense.default:
            return self.read(tensors[0])
        if func in values.INDEXING:
            args = self.known.indices(args)
        is_done, result = self._special(func, args, kwargs, tensors)
        if is_done:
            return result
        if self.log.phase.current() == FORWARD:
            for tensor in tensors:  # one that is new was made below the mode
                self.log.record(tensor)
        if not self.counts_operations:
            result = func(*args, **kwargs)
        else:
            before = self.launches.total()
            result = func(*args, **kwargs)
            self.launches.seen += self.launches.total() - before
        self._note(func, args, kwargs, tensors, result)
        return result

    def _special(self, func, args, kwargs, tensors):
        """(True, the result) of an operation that is not given to the device as it is."""
        is_done, result = self.host.run(func, args, kwargs, tensors)
        if is_done:
            self.known.keep_on_host(func, args, tensors, tensors_of((result,)))
            return True, result
        is_done, result = self.known.before(func, args, kwargs, tensors)
        if is_done:
            self._note(func, args, kwargs, tensors, result, follows=False)
        return is_done, result

    def _note(self, func, args, kwargs, tensors, result, follows=True):
        results = tensors_of((result,))
        copies_weight = self._copies_weight(func, tensors)
        for tensor in results:
            is_new = self.log.entry_of(tensor) is None
            entry = self.log.record(tensor, func.__name__)
            if entry is not None and is_new and copies_weight:
                entry.kind = COPY
        if follows:
            self.known.after(func, args, kwargs, tensors, result)
        if self.counts_operations:
            devices = {tensor.device.type for tensor in (*results, *tensors)}
            if self.log.device_type in devices:
                self._count(func, args, kwargs, result)

    def _copies_weight(self, func, tensors):
        """Whether an operation makes a copy of a weight: autocast's cast, or what bitsandbytes makes of 4 bits."""
        if func.__name__.startswith("dequantize_4bit"):
            return True
        if func is not aten._to_copy.default:
            return False
        source = self.log.entry_of(tensors[0])
        return source is not None and source.kind == PARAMETER

    def _count(self, func, args, kwargs, result):
        phase = self.log.phase.latest
        caller = phase
        if phase == BACKWARD and torch.is_grad_enabled():  # a forward pass that is run again
            caller = FORWARD
        module = self.log.modules[-1] if self.log.modules else None
        described = _described(args)
        if func.namespace in values.COLLECTIVES:
            described = ("list", tuple(ranks.described_group(value) or _described(value) for value in args))
        call = (str(func), described, _described(tuple(kwargs.items())), _described((result,)))
        key = (phase, caller, id(module), call)
        self.operations[key] = self.operations.get(key, 0) + 1

    # --- what the script reads ---

    def read(self, tensor):
        """The number in a tensor of one element. A library that reads one which nobody computed gets a plain number."""
        twin = self.known.twin(tensor)
        if twin is not None:
            return twin.item()
        if tensor.dtype == torch.bool:
            return self.decisions.answer()
        if tensor.is_floating_point():
            return 1.0
        return self.decisions.whole(self.known.bound(tensor))

    def is_unknown(self, tensor):
        """Whether the values of a plain tensor are not known."""
        if type(tensor) not in PLAIN or tensor.device.type not in ("cuda", "cpu"):
            return False
        return self.known.twin(tensor) is None


def _described(value):
    """An argument as text and numbers: a tensor by its shape, strides, type and device."""
    if isinstance(value, torch.Tensor):
        held = held_tensors(value)
        if len(held) != 1 or held[0].layout is not torch.strided:
            return ("tensor", tuple(value.shape), (), str(value.dtype), value.device.type)
        plain = held[0]
        return ("tensor", tuple(plain.shape), plain.stride(), str(plain.dtype), plain.device.type)
    if isinstance(value, (list, tuple)):
        return ("list", tuple(_described(element) for element in value))
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, SHORT):
        return ("other", type(value).__name__, str(value))
    return ("other", type(value).__name__, "")  # its text may be long: a storage's is that of every byte
