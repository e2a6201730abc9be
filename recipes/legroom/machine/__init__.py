"""This machine: its GPUs and cores, NVML, the figures of known GPUs, other Python interpreters."""
