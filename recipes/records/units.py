"""Units for printing, and the parts of memory in the order in which they are shown."""

from __future__ import annotations

MIB = 2**20
PARTS = (
    ("weights", "parameters"),
    ("gradients", "gradients"),
    ("optimizer states", "optimizer"),
    ("activations", "activations"),
    ("other", "other"),
)
