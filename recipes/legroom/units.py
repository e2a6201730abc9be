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
