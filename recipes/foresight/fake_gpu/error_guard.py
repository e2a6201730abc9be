"""What keeps an error in a backward pass from ending the process.

While C++ takes its stack down, torch asks a backend written in Python for its type (torch/csrc/acc/Module.cpp,
PythonDeviceGuard, behind noexcept). A Python call that begins while an error is set fails with that error, and the
process aborts without a word. So the guard's first act is to take the error away; the device raises it again.
"""

from __future__ import annotations

import ctypes

import torch
from torch.utils.backend_registration import _DummyDeviceGuard

_type, _value, _traceback = (ctypes.py_object() for _ in range(3))
_PLACES = tuple(map(ctypes.byref, (_type, _value, _traceback)))
_lost: list[BaseException] = []


class Guard(_DummyDeviceGuard):
    """The device guard of a backend whose errors reach who called."""

    # All that the first line needs is bound beforehand: with an error set, even making a tuple may fail.
    def type_(self, fetch=ctypes.pythonapi.PyErr_Fetch, places=_PLACES, kind=torch._C._autograd.DeviceType.PrivateUse1):
        fetch(*places)
        if _type:
            value = _value.value if _value else None
            error = value if isinstance(value, BaseException) else _type.value(*([value] if _value else []))
            _lost.append(error.with_traceback(_traceback.value if _traceback else None))
        return kind


def take_error() -> BaseException | None:
    """The error that was taken away, once."""
    error = _lost[0] if _lost else None
    _lost.clear()
    return error
