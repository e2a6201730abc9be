"""Numbers as they are printed, byte units, and the parts of memory in the order in which they are shown."""

import math

MIB = 2**20
GIB = 2**30
# (name in tables and pictures, the record's field `memory.<field>_bytes`)
PARTS = (
    ("weights", "parameters"),
    ("gradients", "gradients"),
    ("optimizer states", "optimizer"),
    ("activations", "activations"),
    ("other", "other"),
)


def size(count: float) -> str:
    """Bytes as they stand in a sentence: in GiB from one on, else in MiB, with three digits."""
    value, name = (count / GIB, "GiB") if abs(count) >= GIB else (count / MIB, "MiB")
    return f"{digits(value)} {name}"


def digits(value: float, count: int = 3) -> str:
    """A number with so many digits, or all those before the point, and never as a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 10**count - 0.5 else f"{value:.{count}g}"


def in_one(parts: list[tuple[str, int]]) -> str:
    """Named bytes in one unit, that of the largest."""
    unit, name = (GIB, "GiB") if max(each for _, each in parts) >= GIB else (MIB, "MiB")
    return f"{', '.join(f'{part} {digits(each / unit)}' for part, each in parts)} {name}"


def number(value: float, digits: int = 4) -> str:
    """A number with this many significant digits, without an exponent: 14949, -9.313, 0.07830."""
    if not value:
        return "0"
    rounded = float(f"{abs(value):.{digits - 1}e}")  # 9.9996 has two digits before the point
    decimals = digits - 1 - math.floor(math.log10(rounded))
    return f"{value:.{max(0, decimals)}f}"


def plural(count: int, noun: str) -> str:
    """'1 step', '2 steps'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def two_digits(value: float) -> str:
    """330 for 327.4, 4.1 for 4.13."""
    return number(float(f"{max(value, 0):.1e}"), 2)
