"""A device whose tensors hold no data: a step runs on it as on a GPU, in seconds, anywhere.

torch has a place for backends written in Python (the dispatch key PrivateUse1). Ours computes nothing: what
an operation would give is found once on torch's own meta device, and remembered by the shapes that went in.
The tensors are plain tensors with a storage of the right size and nothing in it. So autograd, autocast,
checkpointing and the optimizers run as they are, and take it for a GPU. Where torch asks whether a tensor is on
CUDA, the answer is given here: autocast's lists, attention's kernel, softmax in half precision. The CPU can be
faked too, without any of that. Other tensors on the host are real: a step counter can be read, a batch is small.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import traceback
from pathlib import Path
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from recipes.foresight.fake_gpu import attention, error_guard
from recipes.foresight.fake_gpu.autocast import Autocast
from recipes.foresight.fake_gpu.op_cache import (
    GIVEN,
    NEW,
    PLAIN,
    READ,
    SEND,
    VIEW,
    describe,
    meta,
    nbytes,
    signed,
    swap,
)
from recipes.measure import memory_ledger

NAME = "fakecuda"
NOWHERE = 2**60  # from here on lie the addresses of what is not there; no machine has any
APART = 512  # bytes between two of them: FSDP tells tensors by their addresses
FOLLOWED = 2**20  # elements of the largest tensor whose numbers are worked out
HOST = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # its kernels for views touch no data
aten = torch.ops.aten
set_storage = aten.set_.source_Storage_storage_offset.redispatch
as_strided = aten.as_strided.default.redispatch


class UnknownOperation(Exception):
    """An operation that the fake device cannot follow."""


class _Stream:
    """A stream, and an event on one: everything has happened already."""

    def __init__(self, *_, **__):
        pass

    def nothing(self, *_) -> None:
        pass

    wait_event = wait_stream = synchronize = record = wait = nothing

    def record_event(self, *_) -> _Stream:
        return self


class _Backend(_DummyBackendModule):
    """What torch asks the module of a device."""

    Stream = Event = _Stream

    def current_stream(self, *_) -> _Stream:
        return _Stream()

    def stream(self, _) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def set_device(self, _) -> None:
        """There is one."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def empty_cache(self) -> None:
        """Nothing is cached here."""


@functools.cache
def _register() -> torch.library.Library:
    """Make `torch.device("fakecuda")` known, for the rest of the process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend(), device_guard=error_guard.Guard())
    # torch.tensor and process groups work below the modes: no mode is asked, but the kernels of the device.
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    for name in ("empty.memory_format", "empty_strided", "copy_", "as_strided", "view", "_reshape_alias", "zero_"):
        packet, _, overload = name.partition(".")
        library.impl(name, functools.partial(_kernel, getattr(getattr(aten, packet), overload or "default")))
    return library


def _kernel(func, *args, **kwargs):
    return FakeDevice.current.compute(func, args, kwargs)


class FakeDevice(TorchDispatchMode):
    """`with FakeDevice((7, 0)) as fake:` operations that touch `fake.device` compute nothing, all others run.

    capability: compute capability of the GPU; None: the fake device is the CPU, and only what is made in
    `building` or from that is fake. warnings: what had to be assumed, a line each.
    """

    current: FakeDevice

    def __init__(self, capability: tuple[int, int] | None):
        super().__init__()
        if capability is not None:
            _register()
        self.capability = capability
        self.device = torch.device("cpu") if capability is None else torch.device(NAME, 0)
        self.warnings: dict[str, None] = {}
        self.watcher: memory_ledger.MemoryLedger | None = (
            None  # a tape: told of each operation here, without a mode of its own
        )
        self._plans: dict[tuple, object] = {}
        self._addresses = itertools.count(NOWHERE, APART)
        self._building = False
        self._left = contextlib.ExitStack()
        FakeDevice.current = self

    @contextlib.contextmanager
    def building(self):
        """Everything made in here is fake and on the device, and weights are left as they come."""
        from transformers.initialization import no_init_weights

        self._building = True
        with self.device, no_init_weights():
            yield
        self._building = False

    def empty(self, size, stride, dtype: torch.dtype, size_bytes: int, device: torch.device) -> torch.Tensor:
        """A tensor of that shape with a storage of so many bytes, of which there is none."""
        made = torch.empty(0, dtype=dtype) if device.type == "cpu" else torch._C._acc.create_empty_tensor([0], dtype)
        storage = torch._C._construct_storage_from_data_pointer(next(self._addresses), made.device, size_bytes)
        return set_storage(HOST, made, storage, 0, size, stride)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here

    # --- operations ---

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.watcher is not None:
            return self.watcher.__torch_dispatch__(func, types, args, kwargs)
        if memory_ledger.is_fake(types):
            return func(*args, **kwargs or {})
        if types and any(kind not in memory_ledger.PLAIN for kind in types):
            return NotImplemented  # a sharded tensor: its own rules turn this into operations on what it holds
        return self.compute(func, args, kwargs or {})

    def compute(self, func, args, kwargs, signature: tuple | None = None, tensors: list | None = None):
        """What an operation gives, without doing it; one of real tensors alone is done. signature, tensors: of `signed`."""
        if signature is None:
            signature, tensors = signed(func, args, kwargs)
        device = kwargs.get("device")
        if any(map(self._fake, tensors)) or self._makes_fake(device):
            return self._pretend(func, args, kwargs, tensors, signature, device)
        if func is aten.is_pinned.default:
            return True  # as for a fake one: DDP insists on it
        if kwargs.get(
            "pin_memory"
        ):  # the list of weights that took part, which DDP sends: a host without a GPU pins none
            kwargs = kwargs | {"pin_memory": False}
        return func(*args, **kwargs)

    def _pretend(self, func, args, kwargs, tensors, signature, device):
        plan = self._plans.get(signature)
        if plan is None:
            plan = self._plans[signature] = self._plan(func, args, kwargs, tensors)
        if plan is READ:
            return self._read(args[0])
        if plan is SEND:  # torch's fake process group copies what it has: on a fake CPU from stand-ins
            stands = {id(t): torch.empty(t.shape, dtype=t.dtype) if t.is_cpu and self._fake(t) else t for t in tensors}
            return func(*[swap(value, stands) for value in args], **kwargs)
        if device is None:  # what is on the host, for FSDP's offload, stays there
            on_host = tensors and tensors[0].is_cpu and all(tensor.is_cpu for tensor in tensors)
            where = torch.device("cpu") if on_host else self.device
        else:
            where = self.device if torch.device(device).type == NAME else torch.device(device)
        result = self.carry_out(plan, tensors, where)
        if isinstance(result, torch.Tensor) and not result.is_floating_point():
            self._follow(func, args, kwargs, tensors, result)
        return result

    def _follow(self, func, args, kwargs, tensors, result) -> None:
        """Positions and masks come from numbers that are there: work them out too, on the host, should they be read."""
        known = {id(tensor): getattr(tensor, "known", None) if self._fake(tensor) else tensor for tensor in tensors}
        random = torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._opname
        if random or any(value is None for value in known.values()) or result.numel() > FOLLOWED:
            result.known = None
            return
        real = functools.partial(swap, metas=known)
        on_host = {name: torch.device("cpu") if name == "device" else real(value) for name, value in kwargs.items()}
        result.known = func(*map(real, args), **on_host)

    def _fake(self, tensor: torch.Tensor) -> bool:
        return not tensor.is_cpu or (tensor.numel() > 0 and tensor.untyped_storage().data_ptr() >= NOWHERE)

    def _makes_fake(self, device) -> bool:
        if self.capability is None:
            return self._building
        return device is not None and torch.device(device).type == NAME

    def _plan(self, func, args, kwargs, tensors):
        """Run an operation on the meta device, and say what its results are in terms of its arguments."""
        if func is aten._local_scalar_dense.default:
            return READ
        if func.namespace == "c10d":
            return SEND
        if func is aten.is_pinned.default:
            return PLAIN, True  # on the host, for FSDP's offload: where exactly makes no difference
        if not func._schema.returns:
            return PLAIN, None  # it writes in place: the foreach and fused optimizers', and bitsandbytes' own kernels
        metas = {id(tensor): meta(tensor) for tensor in tensors}
        # The meta kernel of this product knows bf16 only, all others any float.
        grouped = func._opname == "_grouped_mm" and tensors[0].dtype != torch.bfloat16
        if grouped:
            metas |= {id(t): metas[id(t)].to(torch.bfloat16) for t in tensors if t.is_floating_point()}
        there = functools.partial(swap, metas=metas)
        kwargs = {
            name: torch.device("meta") if name == "device" and value is not None else there(value)
            for name, value in kwargs.items()
        }
        if self._building and self.capability is None and "device" in [a.name for a in func._schema.arguments]:
            kwargs["device"] = torch.device("meta")
        try:
            result = func(*map(there, args), **kwargs)
        except RuntimeError as error:  # of which an operation that the meta device lacks is one
            raise UnknownOperation(f"the fake device cannot follow {func}: {str(error).splitlines()[0]}") from error
        if grouped:
            result = result.to(tensors[0].dtype)
        places = {id(metas[id(tensor)]): index for index, tensor in enumerate(tensors)}
        storages = {metas[id(tensor)].untyped_storage()._cdata: index for index, tensor in enumerate(tensors)}
        return describe(result, places, storages)

    def carry_out(self, plan, tensors, device: torch.device):
        kind, *told = plan
        if kind is NEW:
            return self.empty(*told, device)
        if kind is GIVEN:
            return tensors[told[0]]
        if kind is VIEW:
            return as_strided(HOST, tensors[told[0]], *told[1:])
        if kind is PLAIN:
            return told[0]
        return kind(self.carry_out(part, tensors, device) for part in told)

    def _read(self, tensor):
        """A number that a program reads from the device: where it is not known, one is made up and the reader named."""
        if getattr(tensor, "known", None) is not None:
            return tensor.known.item()
        ours = (
            str(Path(torch.__file__).parent),
            str(Path(__file__).parents[1]),
            str(Path(memory_ledger.__file__).parent),
        )
        frames = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(ours)]
        where = f"{frames[-1].filename.rpartition('site-packages/')[2]}:{frames[-1].lineno}" if frames else "?"
        self.warnings[f"the step reads a number from the device ({where}), and it is taken as 1."] = None
        return True if tensor.dtype == torch.bool else 1.0 if tensor.is_floating_point() else 1

    # --- what torch does otherwise on CUDA ---

    def __enter__(self):
        # An error must reach us, and a thread of the autograd engine has nobody to give it to.
        self._left.enter_context(torch.autograd.set_multithreading_enabled(False))
        if self.capability is not None:
            self._override(self._left)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._left.close()
        lost = error_guard.take_error()
        if lost is not None:
            raise lost

    def _override(self, left: contextlib.ExitStack) -> None:
        left.callback(Autocast(NAME).close)
        left.enter_context(mock.patch.multiple(torch.UntypedStorage, nbytes=_size, size=_size, resize_=_resize))
        left.enter_context(mock.patch.object(memory_ledger, "RESIZE", _resize))
        library = torch.library.Library("aten", "IMPL")
        left.callback(library._destroy)
        key = "AutogradPrivateUse1"
        library.impl(
            "scaled_dot_product_attention", functools.partial(attention.attend, capability=self.capability), key
        )
        for name in ("softmax", "log_softmax"):
            library.impl(f"{name}.int", functools.partial(_softmax, getattr(aten, f"_{name}")), key)


def _softmax(run, tensor, dim: int, dtype: torch.dtype | None = None):
    """SoftMax.cpp: from fp16 to fp32 in one kernel on CUDA; any other change of dtype makes a copy first."""
    if tensor.dtype == torch.float16 and dtype == torch.float32:
        return run(tensor, dim, True)
    return run(tensor if dtype is None else tensor.to(dtype), dim, False)


# FSDP gives weights back by shrinking their storage to nothing. torch cannot resize a storage of another backend, and
# need not: there is nothing in it, so that its size is a word.
_resize_real = torch.UntypedStorage.resize_


def _size(storage: torch.UntypedStorage) -> int:
    return storage.__dict__.get("said_bytes") if "said_bytes" in storage.__dict__ else nbytes(storage)


def _resize(storage: torch.UntypedStorage, size: int):
    if storage.device.type != NAME:
        return _resize_real(storage, size)
    storage.said_bytes = size
    return storage
