"""Byte units for printing and parsing, the parts of memory in the order in which they are shown, and limits."""

from __future__ import annotations

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


def limited_bytes(free_bytes: int, limit_gib: float | None) -> int:
    """What is free for torch's allocator, and at most `launch.memory_limit_gib`."""
    return free_bytes if limit_gib is None else min(free_bytes, int(limit_gib * GIB))
