"""Optimizer states in few bits in a checkpoint: torchao's, which have one scale for each block of numbers.

A state is saved in its parts, as `<weight>/<key>.codes`. A sharded weight's rank has the blocks of its own rows, so
every part is a shard, too, and another number of ranks reads them as long as its shards end where blocks do. Where they
do not, the numbers are computed and put into the blocks anew, which rounds them once more.
"""

import math
from typing import Any, NamedTuple

import torch

from legroom.checkpoint import saved_values
from legroom.checkpoint.shard_reader import Shard, ShardReader
from legroom.compat import torchao_private
from legroom.compat.torch_private import local_tensor, parts_of
from legroom.errors import Refusal


class Box(NamedTuple):
    """Where a tensor lies in a whole one of `shape`."""

    offset: list[int]
    shape: list[int]


def part_boxes(local: torch.Tensor, rows: Box) -> dict[str, Box] | None:
    """Part -> its place in that of the whole state. None for rows that begin inside a block of the whole.

    local: a state in few bits. rows: where it lies in the whole, of which it has whole rows.
    """
    begin = rows.offset[0] * math.prod(rows.shape[1:]) if rows.shape else 0
    if begin % torchao_private.block_size(local):
        return None
    boxes = {}
    for name, part in parts_of(local).items():
        if name == torchao_private.TABLE:
            boxes[name] = Box([0] * part.dim(), list(part.shape))
        elif part.shape == local.shape:
            boxes[name] = rows
        else:  # flat: one for several numbers
            numbers = local.numel() // part.numel()
            boxes[name] = Box([begin // numbers], [math.prod(rows.shape) // numbers])
    return boxes


def pieces(key: str, local: torch.Tensor, rows: Box) -> dict[str, tuple[torch.Tensor, Box]]:
    """What is saved of a state in few bits: name -> tensor and its place, as `exp_avg.codes`.

    key: of the state. local, rows: see `part_boxes`.
    """
    boxes = part_boxes(local, rows)
    if boxes is None:
        return {key: (torchao_private.numbers(local), rows)}
    return {f"{key}.{name}": (part, boxes[name]) for name, part in parts_of(local).items()}


def restore(optimizer: Any, weight: torch.Tensor, name: str, key: str, rows: Box, reader: ShardReader) -> torch.Tensor:
    """A state of a weight as its optimizer makes it, with the values of a checkpoint.

    name: of the weight, and `<name>/<key>` that of its state. rows: where this rank's part of the weight lies.
    Raises Refusal where a part of it is missing, and ValueError for parts that the optimizer does not have.
    """
    made = torchao_private.new_state(optimizer, weight, key)
    local, full_name = local_tensor(made), f"{name}/{key}"
    size, parts = list(local.shape), parts_of(local)
    if not parts and reader.covers(full_name, rows.offset, size):
        numbers = reader.read(full_name, rows.offset, size, rows.shape)
        saved_values.check_state_dtype(full_name, numbers.dtype)
        local.copy_(numbers)
        return made
    boxes = part_boxes(local, rows) if parts else None
    if boxes and all(
        reader.covers(f"{full_name}.{part}", boxes[part].offset, list(parts[part].shape)) for part in parts
    ):
        for part, tensor in parts.items():
            box = boxes[part]
            saved = reader.read(f"{full_name}.{part}", box.offset, list(tensor.shape), box.shape)
            if saved.dtype != tensor.dtype:
                raise ValueError(f"{part} of {key} has another type")
            tensor.copy_(saved)
        return made
    local.copy_(_numbers(optimizer, full_name, key, rows, size, reader))
    return made


def _numbers(optimizer: Any, full_name: str, key: str, rows: Box, size: list[int], reader: ShardReader) -> torch.Tensor:
    """The fp32 numbers of some rows, from shards that were saved as numbers or in blocks."""
    result, end, filled = torch.zeros(size), [rows.offset[0] + size[0]], 0
    shards = [*reader.shards(full_name), *reader.shards(f"{full_name}.{torchao_private.CODES}")]
    for shard in shards:
        first, count = _rows_of(shard, rows.shape)
        low, high = max(first, rows.offset[0]), min(first + count, end[0])
        if low >= high:
            continue
        if shard in reader.shards(full_name):
            saved = shard.file.get_tensor(full_name)
        else:
            saved = _from_parts(optimizer, full_name, key, [count, *rows.shape[1:]], shard.file)
        result[low - rows.offset[0] : high - rows.offset[0]] = saved[low - first : high - first]
        filled += high - low
    if filled != size[0]:
        raise Refusal(f"the checkpoint has {filled} of {size[0]} rows of {full_name}: the shard of a rank is missing.")
    return result


def _rows_of(shard: Shard, shape: list[int]) -> tuple[int, int]:
    """(first row, number of rows) of the state of this shape that a shard of its numbers, or of its codes, has."""
    if shard.shape == shape:
        return shard.offset[0], shard.end[0] - shard.offset[0]
    codes = shard.shape[0]  # of the whole state, in one dimension
    return shard.offset[0] * shape[0] // codes, (shard.end[0] - shard.offset[0]) * shape[0] // codes


def _from_parts(optimizer: Any, full_name: str, key: str, shape: list[int], file: Any) -> torch.Tensor:
    """The numbers of a shard that was saved in its parts."""
    state = torchao_private.zeros(optimizer, shape, key)
    for part, tensor in parts_of(state).items():
        tensor.copy_(file.get_tensor(f"{full_name}.{part}"))
    return torchao_private.numbers(state)
