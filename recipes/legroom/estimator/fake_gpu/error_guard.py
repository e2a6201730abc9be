"""Keeps an exception in a backward pass on the fake device from aborting the process.

When a Python exception crosses the C++ autograd engine, the engine's device guard asks our backend for its device type
while the exception is still set (torch/csrc/acc/Module.cpp, PythonDeviceGuard, in a `noexcept` function). A Python call
that begins with an exception set fails, and the process aborts. So our guard takes the exception away first, and the
FakeDevice raises it again when it is left.
"""

import ctypes
from typing import Any

from legroom.compat.torch_backend_private import PRIVATE_USE_1, DeviceGuard, fetch_python_error

_type, _value, _traceback = (ctypes.py_object() for _ in range(3))
_REFERENCES = tuple(map(ctypes.byref, (_type, _value, _traceback)))
_taken: list[BaseException] = []


class ErrorGuard(DeviceGuard):
    """The backend's device guard."""

    # Everything that the first line needs is bound here: with an exception set, even building a tuple may fail.
    def type_(self, fetch: Any = fetch_python_error, references: Any = _REFERENCES, kind: Any = PRIVATE_USE_1) -> Any:
        fetch(*references)
        if _type:
            _taken.append(_error())
        return kind


def _error() -> BaseException:
    """The exception that was taken away. Python may not have made it yet: then there are its class and its argument."""
    if not _value:
        error = _type.value()
    elif isinstance(_value.value, BaseException):
        error = _value.value
    else:
        error = _type.value(_value.value)
    return error.with_traceback(_traceback.value if _traceback else None)


def take_error() -> BaseException | None:
    """The first exception that the guard took away since the last call."""
    if not _taken:
        return None
    error = _taken[0]
    _taken.clear()
    return error
