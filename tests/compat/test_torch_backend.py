"""The private names of torch for a backend in Python behave as legroom.compat.torch_backend_private says."""

from __future__ import annotations

import ctypes
import inspect

import pytest
import torch

from legroom.compat import torch_backend_private
from legroom.estimator.fake_gpu import backend, error_guard
from legroom.estimator.fake_gpu.fake_storages import DEVICE_TYPE

aten = torch.ops.aten


@pytest.fixture
def device():
    backend.register()
    return torch.device(DEVICE_TYPE, 0)


def test_register_backend(device):
    assert device.type == DEVICE_TYPE
    register = torch_backend_private.backend_registration._setup_privateuseone_for_python_backend
    parameters = inspect.signature(register).parameters
    assert {"rename", "backend_module", "device_guard"} <= parameters.keys()


def test_device_guard_has_type_():
    assert "type_" in vars(torch_backend_private.DeviceGuard)
    assert error_guard.ErrorGuard().type_() == torch_backend_private.PRIVATE_USE_1


def test_backend_module():
    assert torch_backend_private.BackendModule().device_count() >= 1


def test_create_empty_backend_tensor(device):
    made = torch_backend_private.create_empty_backend_tensor([0], torch.float16)
    assert (made.device.type, made.dtype, made.numel()) == (DEVICE_TYPE, torch.float16, 0)


def test_storage_at_address_does_not_own_its_memory(device):
    storage = torch_backend_private.storage_at_address(2**60, torch.device("cpu"), 1024)
    assert (storage.data_ptr(), storage.nbytes()) == (2**60, 1024)


def test_fetch_python_error_writes_its_arguments():
    """Null to all three where no exception is set. tests/foresight/fake_gpu/test_fake_device.py has a case with one."""
    found = [ctypes.py_object(ValueError) for _ in range(3)]
    torch_backend_private.fetch_python_error(*map(ctypes.byref, found))
    assert not any(map(bool, found)) and error_guard.take_error() is None


def test_dispatch_keys():
    keys = torch_backend_private.dispatch_keys("CPU")
    x = torch.ones(4)
    assert aten.as_strided.default.redispatch(keys, x, (2,), (2,), 0).shape == (2,)


def test_excluded_dispatch_keys():
    with torch.autocast("cpu", torch.bfloat16):
        keys = torch_backend_private.dispatch_keys("AutocastCPU")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        with torch_backend_private.excluded_dispatch_keys(keys):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize("fails", [False, True])
def test_registered_kernels(fails):
    x = torch.ones(2, requires_grad=True)
    try:
        with torch_backend_private.registered_kernels("AutogradCPU", {"sinc": lambda tensor: tensor * 0 + 7}):
            assert torch.sinc(x).tolist() == [7, 7]
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert torch.sinc(x).tolist() != [7, 7]


def absolute_with_autocast_key() -> torch.Tensor:
    """An operator for which no autocast kernel is registered, called with the autocast key of the backend."""
    x = torch.full((2,), -1.0)
    torch.set_autocast_enabled(DEVICE_TYPE, True)
    try:
        with torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.AutocastPrivateUse1):
            return torch.abs(x)
    finally:
        torch.set_autocast_enabled(DEVICE_TYPE, False)


def test_fallthrough_for(device):
    with torch_backend_private.fallthrough_for("AutocastPrivateUse1"):
        assert absolute_with_autocast_key().tolist() == [1, 1]
    with pytest.raises(NotImplementedError, match="aten::abs"):
        absolute_with_autocast_key()


def test_observed_autocast_exit():
    seen, clear = [], torch.clear_autocast_cache
    with torch_backend_private.observed_autocast_exit(lambda: seen.append(1)):
        with torch.autocast("cpu", torch.bfloat16):
            assert not seen
        assert seen == [1]
    assert torch.clear_autocast_cache is clear


def test_is_view():
    x = torch.ones(4)
    assert torch_backend_private.is_view(x[1:]) and not torch_backend_private.is_view(x)


def test_replaced_storage_sizes():
    storage = torch.ones(4).untyped_storage()
    with torch_backend_private.replaced_storage_sizes(lambda _: 5, lambda storage, size: size):
        assert (storage.nbytes(), storage.size(), storage.resize_(9)) == (5, 5, 9)
    assert (storage.nbytes(), storage.size()) == (16, 16)
