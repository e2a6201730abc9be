"""Private names of DeepSpeed that this project sets, each with its reason. Imports deepspeed."""

import deepspeed  # pyright: ignore[reportMissingImports]  # large, and so in no environment that checks types


def skip_shared_memory_kernel() -> None:
    """DeepSpeed would compile a C++ kernel for inference at its first start on every CPU."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
