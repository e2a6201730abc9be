"""The parts of memory that a storage may belong to (memory_attribution.py says what each is). Imports nothing."""

KINDS = ("parameters", "weight_copies", "gradients", "optimizer", "activations", "other")
PARAMETER, COPY, GRADIENT, OPTIMIZER, ACTIVATION, OTHER = KINDS
