"""Memory that CUDA's reductions take beside their results: sums over many rows are shared out among blocks of threads.

The rules are those of torch 2.13, ATen/native/cuda/Reduce.cuh (setReduceConfig) and ATen/TensorIterator.cpp (the order
and merging of dimensions). A block keeps its part of a result in a buffer in device memory, and counts itself in a
second one; both are freed when the kernel has been started.
"""

import math
from typing import Any

import torch

from legroom.compat.torch_private import op_name, schema

WARP = 32
MOST_THREADS = 512  # of a block: mnt_wrapper
LEAST_VALUES, MOST_VALUES = 16, 256  # that a thread adds up before a reduction is shared out
INT_BYTES, LONG_BYTES = 4, 8
# Bytes of what is accumulated; None: as many as an element of the input.
ACCUMULATED = {
    "sum": None,
    "mean": None,
    "prod": None,
    "linalg_vector_norm": None,
    "amax": None,
    "amin": None,
    "var": 16,  # WelfordData: mean, sum of squares and two counts
    "var_mean": 16,
    "std": 16,
    "std_mean": 16,
}
KEEP_TYPE = {"amax", "amin"}  # the others accumulate 16-bit values in fp32
THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (11, 0): 1536, (12, 0): 1536, (12, 1): 1536}
DEFAULT_THREADS = 2048


def threads_per_multiprocessor(capability: tuple[int, int]) -> int:
    """The most threads that a multiprocessor runs at once, by compute capability."""
    return THREADS.get(capability, DEFAULT_THREADS)


def buffers_of(func: Any, args: Any, kwargs: Any, threads: int, multiprocessors: int) -> tuple[int, ...]:
    """The buffers of an operation, in bytes, in the order of their allocation; empty: it takes none.

    threads: of a multiprocessor.
    """
    name = op_name(func)
    if name not in ACCUMULATED or not isinstance(args[0], torch.Tensor) or not args[0].numel():
        return ()
    tensor = args[0]
    accumulated = ACCUMULATED[name]
    copied: tuple[int, ...] = ()
    if accumulated is None:
        accumulated = tensor.element_size()
        if name not in KEEP_TYPE and tensor.is_floating_point():
            accumulated = max(accumulated, 4)
        elif name not in KEEP_TYPE and accumulated < LONG_BYTES:  # smaller integers and truths are copied first
            accumulated = LONG_BYTES
            copied = (tensor.numel() * LONG_BYTES,)
    dimensions = _dimensions(func, args, kwargs)
    staged = buffers(tuple(tensor.shape), tensor.stride(), dimensions, accumulated, threads, multiprocessors)
    return copied + staged


def _dimensions(func: Any, args: Any, kwargs: Any) -> list[int]:
    """Over which dimensions an operation reduces; empty: all."""
    for position, argument in enumerate(schema(func).arguments):
        if argument.name == "dim":
            dimensions = args[position] if position < len(args) else kwargs.get("dim")
            if dimensions is None:
                return []
            return [dimensions] if isinstance(dimensions, int) else list(dimensions)
    return []


def buffers(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dimensions: list[int],
    accumulated_bytes: int,
    threads: int,
    multiprocessors: int,
) -> tuple[int, ...]:
    """See `buffers_of`. dimensions: over which is reduced; empty: all."""
    reduced, kept = _merged_dimensions(shape, strides, dimensions)
    inputs = math.prod(size for size, *_ in reduced)
    outputs = math.prod(size for size, *_ in kept)
    along_rows = not kept or (bool(reduced) and reduced[0][1] < kept[0][1])  # the fastest dimension is reduced
    vector = 1  # results of one thread
    if along_rows:
        width, height = _block(inputs, outputs, MOST_THREADS)
        step_inputs = width
        step_outputs = 1
    else:
        if kept[0][1] == 1:
            vector = math.gcd(4, kept[0][0], *(stride for _, stride, *_ in [*reduced, *kept[1:]]))
        width, height = _block(outputs // vector, inputs, MOST_THREADS // vector)
        step_inputs = 1
        step_outputs = width
    values = -(-inputs // step_inputs)
    if values < min(height * 16, MOST_VALUES):
        return ()  # each warp has a result of its own
    values = -(-inputs // (step_inputs * height))
    grid = -(-(outputs // vector) // step_outputs)
    most_blocks = multiprocessors * (threads // (width * height))
    if values < MOST_VALUES or grid > most_blocks:
        return ()
    blocks = max(min(-(-most_blocks // grid), -(-values // LEAST_VALUES)), -(-values // MOST_VALUES))
    if blocks == 1:
        return ()
    staged = accumulated_bytes * outputs * blocks
    if not along_rows:
        staged *= width * vector
    return staged, INT_BYTES * grid


def _merged_dimensions(
    shape: tuple[int, ...], strides: tuple[int, ...], dimensions: list[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """The reduced dimensions as [size, stride] and the kept ones as [size, stride, stride in the result], the fastest
    first, with those merged that follow each other in memory."""
    if dimensions:
        reduced_dimensions = {dimension % max(len(shape), 1) for dimension in dimensions}
    else:
        reduced_dimensions = set(range(len(shape)))
    reduced = []
    kept = []
    result_stride = 1
    for dimension in reversed(range(len(shape))):
        if shape[dimension] == 1:
            continue
        if dimension in reduced_dimensions:
            reduced.append([shape[dimension], strides[dimension]])
        else:
            kept.append([shape[dimension], strides[dimension], result_stride])
            result_stride *= shape[dimension]
    reduced.sort(key=lambda size_stride: size_stride[1])
    return _merged(reduced), _merged(kept)


def _merged(dimensions: list[list[int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for size, *strides in dimensions:
        if merged and [merged[-1][0] * stride for stride in merged[-1][1:]] == strides:
            merged[-1][0] *= size
        else:
            merged.append([size, *strides])
    return merged


def _block(across: int, along: int, most: int) -> tuple[int, int]:
    """The width and the height of a block of at most `most` threads, powers of two (set_block_dimension)."""
    across = _power_of_two(min(across, most))
    along = _power_of_two(min(along, most))
    height = min(along, most // min(across, WARP))
    return min(across, most // height), height


def _power_of_two(number: int) -> int:
    """The largest that is not above a number of at least 1."""
    return 1 << max(number, 1).bit_length() - 1
