"""Byte units for printing and parsing, the parts of memory in the order in which they are shown."""

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
