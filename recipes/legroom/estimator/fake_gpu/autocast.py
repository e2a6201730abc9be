"""CUDA's autocast for the fake GPU: which operations run in 16 bits, which in fp32, and the cached copies of weights.

torch registers these lists for CUDA only; a PrivateUse1 backend has to bring its own. The lists are those of
ATen/autocast_mode.h in torch 2.13, the casts those of autocast_mode.cpp. torch 2.11 lacks rms_norm.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom import yaml_table
from legroom.compat import torch_backend_private as backend
from legroom.compat.patching import patched
from legroom.compat.torch_private import overload_name, schema
from legroom.estimator.ledger.op_flops import tensors_in

KEY = "AutocastPrivateUse1"  # the fake GPU's dispatch key
LISTS: dict[str, list[str]] = yaml_table.beside(__file__)  # policy -> operations


@contextlib.contextmanager
def cuda_autocast(device_type: str) -> Iterator[None]:
    """Inside, autocast on a device type casts as CUDA's does, and is CUDA's for whoever asks: peft's quantised layers
    cast their input where there is none."""
    policies = _Policies(device_type)
    is_enabled = torch.is_autocast_enabled

    def is_enabled_there(of: str | None = None) -> bool:
        if of is None or of == "cuda":
            of = device_type
        return is_enabled(of)

    kernels: dict[str, Callable] = {}
    for policy, names in LISTS.items():
        for name in names:
            known = hasattr(torch.ops.aten, name.partition(".")[0])
            if known and (name != "rms_norm" or torch.__version__ >= "2.12"):
                kernels[name] = functools.partial(getattr(policies, policy), backend.overload(name))
    with (
        backend.fallthrough_for(KEY),
        backend.registered_kernels(KEY, kernels),
        backend.observed_autocast_exit(policies.clear_cache),
        patched(torch, is_autocast_enabled=is_enabled_there),
    ):
        yield


class _Policies:
    """What autocast does with the arguments of an operation: a method for each of LISTS, by its name."""

    def __init__(self, device_type: str):
        self.device_type = device_type
        self._keys = backend.dispatch_keys(KEY)
        self._cache: dict[int, tuple[weakref.ref, torch.Tensor]] = {}  # id of a weight -> (weight, its cast)

    def clear_cache(self) -> None:
        self._cache.clear()

    # --- casts ---

    def _eligible(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.device.type == self.device_type
            and value.is_floating_point()
            and value.dtype != torch.float64
        )

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        """cached_cast: a weight that is used twice is cast once."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(item, dtype) for item in value)
        if not self._eligible(value) or value.dtype == dtype:
            return value
        cacheable = (
            dtype == torch.get_autocast_dtype(self.device_type)
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not backend.is_view(value)
            and torch.is_autocast_cache_enabled()
        )
        if not cacheable:
            return value.to(dtype)
        weight, cast = self._cache.get(id(value), (None, None))
        if weight is None or weight() is not value:
            cast = value.to(dtype)
            self._cache[id(value)] = (weakref.ref(value), cast)
        return cast

    def _call(self, func: Any, args: Any, kwargs: Any, dtype: torch.dtype | None = None) -> Any:
        with backend.excluded_dispatch_keys(self._keys):
            if dtype is not None:
                # The last argument is cast first, as the compiler of torch's wheels (GCC) evaluates arguments.
                kwargs = {name: self._cast(value, dtype) for name, value in reversed(kwargs.items())}
                args = [self._cast(value, dtype) for value in reversed(args)][::-1]
            return func(*args, **kwargs)

    # --- policies ---

    def lower(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """lower_precision_fp: in autocast's dtype."""
        return self._call(func, args, kwargs, torch.get_autocast_dtype(self.device_type))

    def fp32(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        return self._call(func, args, kwargs, torch.float32)

    def fp32_result(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """fp32_set_opt_dtype: the result is fp32, unless the caller passes a dtype."""
        dtype_index = [argument.name for argument in schema(func).arguments].index("dtype")
        dtype = kwargs.get("dtype")
        if dtype is None and dtype_index < len(args):
            dtype = args[dtype_index]
        if self._eligible(args[0]) and dtype is None:
            args = args[:dtype_index]
            kwargs = kwargs | {"dtype": torch.float32}
        return self._call(func, args, kwargs)

    def fp32_appended(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """fp32_append_dtype: the overload with a dtype is called instead."""
        if not self._eligible(args[0]):
            return self._call(func, args, kwargs)
        if overload_name(func) == "Scalar":  # of all elements
            with_dtype = torch.ops.aten.norm.ScalarOpt_dtype
            args = (*args, 2)[:2]  # p: torch leaves out what is a default
        else:  # along a dimension
            with_dtype = torch.ops.aten.norm.ScalarOpt_dim_dtype
            args = (*args, False)[:4]  # keepdim
        return self._call(with_dtype, args, kwargs | {"dtype": torch.float32})

    def widest(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """promote: in fp32 if an argument is fp32, in autocast's dtype otherwise."""
        dtype = torch.get_autocast_dtype(self.device_type)
        for value in tensors_in((*args, *kwargs.values())):
            if self._eligible(value) and value.dtype == torch.float32:
                dtype = torch.float32
        return self._call(func, args, kwargs, dtype)
