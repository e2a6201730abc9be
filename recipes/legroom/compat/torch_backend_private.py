"""Private names of torch for a device backend that is written in Python: its registration, kernels and storages."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch.utils import backend_registration

from legroom.compat.patching import patched

# What torch.utils.backend_registration asks of the module and of the device guard of such a backend.
BackendModule = backend_registration._DummyBackendModule
DeviceGuard = backend_registration._DummyDeviceGuard


def register_backend(name: str, module: Any, guard: Any) -> None:
    """Make `torch.device(name)` known for the rest of the process, under the dispatch key PrivateUse1.

    torch's public `rename_privateuse1_backend` needs a device guard written in C++; this one accepts Python's.
    """
    register = backend_registration._setup_privateuseone_for_python_backend
    register(name, backend_module=module, device_guard=guard)


# DeviceType.PrivateUse1, which a device guard returns from `type_`.
PRIVATE_USE_1 = torch._C._autograd.DeviceType.PrivateUse1  # type: ignore[attr-defined]  (not in torch's stubs)

# An empty tensor of the PrivateUse1 backend: create_empty_backend_tensor([0], dtype).
create_empty_backend_tensor: Callable[[list[int], torch.dtype], torch.Tensor]
create_empty_backend_tensor = torch._C._acc.create_empty_tensor  # type: ignore[attr-defined]  (not in torch's stubs)

# A storage (address, device, bytes) that does not own its memory, and so may have an address where there is none.
storage_at_address: Callable[[int, torch.device, int], Any] = torch._C._construct_storage_from_data_pointer

# Takes the exception that is set in this thread, and clears it. (PyErr_GetRaisedException replaces it from 3.12 on.)
fetch_python_error = ctypes.pythonapi.PyErr_Fetch


def dispatch_keys(name: str) -> Any:
    """The set of one dispatch key, for `OpOverload.redispatch` and `excluded_dispatch_keys`."""
    return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))


# Context manager: kernels of a set of dispatch keys are not called. Autocast kernels leave autocast with it.
excluded_dispatch_keys = torch._C._ExcludeDispatchKeyGuard


def overload(name: str) -> Any:
    """The operator of aten that `registered_kernels` takes by a name: "add.Tensor", or "add_" for the default one."""
    return attrgetter(name if "." in name else f"{name}.default")(torch.ops.aten)


@contextlib.contextmanager
def registered_kernels(key: str, kernels: dict[str, Callable]) -> Iterator[None]:
    """Inside, the operators of aten named in `kernels` have those kernels for a dispatch key.

    `torch.library.Library` has no public way to take a registration back.
    """
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, kernel in kernels.items():
            library.impl(name, kernel, key)
        yield


@contextlib.contextmanager
def fallthrough_for(key: str) -> Iterator[None]:
    """Inside, operators without a kernel for a dispatch key go on to the next key, as CUDA's do for autocast."""
    with torch.library._scoped_library("_", "IMPL") as library:
        library.fallback(torch.library.fallthrough_kernel, key)
        yield


def observed_autocast_exit(cleared: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Inside, `cleared()` is called when the outermost autocast region ends.

    torch.autocast calls `torch.clear_autocast_cache` there, which clears the C++ cache of casted weights only.
    """
    clear = torch.clear_autocast_cache

    def observed() -> None:
        cleared()
        clear()

    return patched(torch, clear_autocast_cache=observed)


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd knows the tensor as a view. cached_cast in ATen/autocast_mode.cpp asks the same."""
    return tensor._is_view()


def replaced_storage_sizes(
    nbytes: Callable[[torch.UntypedStorage], int], resize: Callable[[torch.UntypedStorage, int], Any]
) -> contextlib.AbstractContextManager[None]:
    """Inside, `UntypedStorage.nbytes`, `size` and `resize_` are these functions.

    torch cannot resize a storage of a PrivateUse1 backend.
    """
    return patched(torch.UntypedStorage, nbytes=nbytes, size=nbytes, resize_=resize)
