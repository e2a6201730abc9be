"""`float` and the functions of `math` in the script's own modules: what they make of a number that nobody computed.

Python turns whatever `__float__` returns into a plain float, whose decisions nobody sees. So the script's own modules
get a `float` of their own, which hands an unknown number on, and the functions of `math` do the same. Code that is
compiled must not meet either: both are withdrawn when the script compiles something.
"""

from __future__ import annotations

import builtins
import functools
import importlib.machinery
import math
import re
import sys

from legroom_inside import numbers, places

FUNCTIONS = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "pow",
    "sin",
    "cos",
    "tanh",
    "fabs",
    "fsum",
]
# Where these stand, a `float` of another identity would be noticed.
NOTICED = re.compile(r"\bis (not )?float\b|\bpydantic\b|\bjit\b")


class _Kind(type):
    """The class of `Float`, which cannot be told from Python's own."""

    def __instancecheck__(cls, value):
        return isinstance(value, builtins.float)

    def __subclasscheck__(cls, kind):
        return issubclass(kind, builtins.float)

    def __eq__(cls, other):
        return other is cls or other is builtins.float

    def __hash__(cls):
        return hash(builtins.float)


class Float(builtins.float, metaclass=_Kind):
    """Stands for `float` in the script's own modules. is_unknown: set by `install`."""

    is_unknown = None

    def __new__(cls, value=0.0):
        if isinstance(value, numbers.UnknownFloat):
            return value
        if isinstance(value, numbers.UnknownInt):
            return numbers.unknown_float(value.bound)
        if cls.is_unknown(value):
            return numbers.unknown_float()
        return builtins.float(value)


Float.__name__ = Float.__qualname__ = "float"
Float.__module__ = "builtins"


class Plain:
    """Puts `Float` and the functions of `math` in place. is_unknown: whether a value is a tensor or an array of one
    number that nobody computed."""

    def __init__(self, is_unknown):
        Float.is_unknown = staticmethod(is_unknown)
        self.is_unknown = is_unknown
        self.modules = []
        self.real = {}
        self.load = importlib.machinery.SourceFileLoader.exec_module

    def install(self):
        for module in list(sys.modules.values()):
            self._enter(module)
        load = self.load
        enter = self._enter

        def loaded(loader, module):
            enter(module)
            return load(loader, module)

        importlib.machinery.SourceFileLoader.exec_module = loaded
        for name in FUNCTIONS:
            if hasattr(math, name):  # exp2 is of Python 3.11
                self.real[name] = getattr(math, name)
                setattr(math, name, self._calculating(self.real[name]))

    def withdraw(self):
        """Take everything back."""
        importlib.machinery.SourceFileLoader.exec_module = self.load
        for name, function in self.real.items():
            setattr(math, name, function)
        for names in self.modules:
            if names.get("float") is Float:
                del names["float"]
        self.modules = []

    def _enter(self, module):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or not places.is_own(file):
            return
        try:
            with open(file, encoding="utf-8", errors="replace") as source:
                is_noticed = NOTICED.search(source.read())
        except OSError:
            return
        if not is_noticed and "float" not in vars(module):
            vars(module)["float"] = Float
            self.modules.append(vars(module))

    def _calculating(self, function):
        @functools.wraps(function)
        def calculate(*args):
            for argument in args:
                values = argument if isinstance(argument, (list, tuple)) else (argument,)
                for value in values:
                    if isinstance(value, numbers.Unknown) or self.is_unknown(value):
                        return numbers.unknown_float()
            return function(*args)

        _tell_script_compiler(function, calculate)
        return calculate


def _tell_script_compiler(function, instead):
    """Let torch.jit.script take `instead` for the function of `math` that it knows."""
    try:
        from torch.jit import _builtins

        known = _builtins._find_builtin(function)
        if known is not None:
            _builtins._register_builtin(instead, known)
    except (AttributeError, ImportError):  # of another version: what it compiles there has no such function, mostly
        pass
