"""A device whose tensors hold no data: a step runs on it as on a GPU, in seconds, anywhere.

torch has a place for backends written in Python (the dispatch key PrivateUse1), and fake tensors, which know
their shape, dtype and device alone. Together they are a GPU that computes nothing: autograd, autocast,
checkpointing and the optimizers run as they are. What torch decides by asking whether a tensor is on CUDA is
decided here as for CUDA: autocast's lists, attention's kernel, softmax in half precision. The CPU can be
faked too, without any of that. Tensors on the host are real: a step counter can be read, a batch is small.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from recipes.foresight import attention
from recipes.foresight.autocast import Autocast

NAME = "fakecuda"
aten = torch.ops.aten


class _Backend(_DummyBackendModule):
    """What torch asks the module of a device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def empty_cache(self) -> None:
        """Nothing is cached here."""


@functools.cache
def _register() -> None:
    """Make `torch.device("fakecuda")` known, for the rest of the process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())


class FakeDevice(TorchDispatchMode):
    """`with FakeDevice((7, 0)) as fake:` operations that touch `fake.device` compute nothing, all others run.

    capability: compute capability of the GPU; None: the fake device is the CPU, and only what is made in
    `building` or from that is fake. warnings: what had to be assumed, a line each.
    """

    def __init__(self, capability: tuple[int, int] | None):
        super().__init__()
        if capability is not None:
            _register()
        self.capability = capability
        self.device = torch.device("cpu") if capability is None else torch.device(NAME, 0)
        self.warnings: dict[str, None] = {}
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._left = contextlib.ExitStack()

    @contextlib.contextmanager
    def building(self):
        """Everything made in here is fake and on the device, and weights are left as they come."""
        from transformers.initialization import no_init_weights

        with self._mode, self.device, no_init_weights():
            yield

    def on_host(self):
        """Everything made in here is fake and on the host."""
        return self._mode

    # --- operations ---

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        fake = any(issubclass(kind, FakeTensor) for kind in types)
        if func is torch.ops.prim.device.default and fake:
            return args[0].fake_device
        if not fake and not self._is_here(kwargs.get("device")):
            return func(*args, **kwargs)
        if func is aten._local_scalar_dense.default:
            return self._read(args[0])
        if func.namespace == "bitsandbytes" and not func._schema.returns:
            return None  # its optimizers write in place, with kernels that know no fake tensors
        if not fake:  # a copy from the host
            args = [self._mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in args]
        return self._mode.dispatch(func, types, args, kwargs)

    def _is_here(self, device) -> bool:
        return self.capability is not None and device is not None and torch.device(device).type == NAME

    def _read(self, tensor):
        """A number that a program reads from the device: it is not there, so one is made up and the reader named."""
        frames = [f for f in traceback.extract_stack() if not f.filename.startswith(str(torch.__path__[0]))]
        where = f"{frames[-2].filename.rpartition('site-packages/')[2]}:{frames[-2].lineno}" if len(frames) > 1 else "?"
        self.warnings[f"the step reads a number from the device ({where}), and it is taken as 1."] = None
        return tensor.dtype.is_floating_point and 1.0 or (True if tensor.dtype == torch.bool else 1)

    # --- what torch does otherwise on CUDA ---

    def __enter__(self):
        from torch.optim import optimizer
        from torch.utils import _foreach_utils

        left = self._left
        left.enter_context(torch.autograd.set_multithreading_enabled(False))  # an error must reach us, not abort
        lists = [_foreach_utils._foreach_supported_types]
        if self.capability is not None:
            lists.append(optimizer._foreach_supported_types)
            self._override(left)
        left.enter_context(mock.patch.object(torch.nn.Module, "to", self._stay(torch.nn.Module.to)))
        for kinds in lists:  # a fake tensor stands for a plain one
            kinds.append(FakeTensor)
            left.callback(kinds.remove, FakeTensor)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._left.close()

    def _stay(self, move):
        """`Module.to`, which would put new tensors in the place of fake ones even where they are at home already."""
        def to(module, *args, **kwargs):
            here = args and not isinstance(args[0], (torch.dtype, torch.Tensor)) and torch.device(args[0]) == self.device
            return module if here else move(module, *args, **kwargs)

        return to

    def _override(self, left: contextlib.ExitStack) -> None:
        left.callback(Autocast(NAME).close)
        library = torch.library.Library("aten", "IMPL")
        left.callback(library._destroy)
        key = "AutogradPrivateUse1"
        library.impl("scaled_dot_product_attention", functools.partial(attention.attend, capability=self.capability), key)
        for name in ("softmax", "log_softmax"):
            library.impl(f"{name}.int", functools.partial(_softmax, getattr(aten, f"_{name}")), key)


def _softmax(run, tensor, dim: int, dtype: torch.dtype | None = None):
    """SoftMax.cpp: from fp16 to fp32 in one kernel on CUDA; any other change of dtype makes a copy first."""
    if tensor.dtype == torch.float16 and dtype == torch.float32:
        return run(tensor, dim, True)
    return run(tensor if dtype is None else tensor.to(dtype), dim, False)
