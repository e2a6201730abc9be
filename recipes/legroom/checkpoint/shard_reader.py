"""Reads tensors of a checkpoint from the shards that its ranks saved, also for another number of ranks."""

import itertools
import math
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from legroom.errors import Refusal
from legroom.records.checkpoint_files import Checkpoint


class Shard(NamedTuple):
    """Part of a tensor: the open file that has it, where it begins in the whole tensor, and its end there."""

    file: Any
    offset: list[int]
    end: list[int]
    shape: list[int]  # of the whole tensor

    def overlap(self, offset: list[int], end: list[int]) -> tuple[list[int], list[int]] | None:
        """(offset, end) of what this shard has of a box; None where it has nothing of it."""
        low = [max(wanted, saved) for wanted, saved in zip(offset, self.offset)]
        high = [min(wanted, saved) for wanted, saved in zip(end, self.end)]
        if any(begin >= stop for begin, stop in zip(low, high)):
            return None
        return low, high


class ShardReader:
    """Reads tensors from the shards that the ranks of a checkpoint have saved.

    Raises Refusal for shards that do not fit into the tensors they are part of.
    """

    def __init__(self, checkpoint: Checkpoint):
        self._shards: dict[str, list[Shard]] = {}
        self._keys: dict[str, list[str]] = {}  # a weight's name -> keys of its optimizer state
        try:
            for values in checkpoint.ranks:
                for file in values["files"]:
                    self._add(safe_open(checkpoint.folder / file, framework="pt"), values.get("boxes", {}))
        except SafetensorError as error:
            raise Refusal(f"{checkpoint.folder} cannot be read: {error}.") from error
        for name, shards in self._shards.items():
            weight, _, key = name.rpartition("/")
            self._keys.setdefault(weight, []).append(key)
            if any(one.overlap(other.offset, other.end) for one, other in itertools.combinations(shards, 2)):
                raise Refusal(
                    f"shards of {name} overlap in {checkpoint.folder}: it is not a checkpoint of one training."
                )

    def _add(self, file: Any, boxes: dict[str, dict]) -> None:
        """Add the shards in a file. boxes: where they are in the whole tensors."""
        for name in file.keys():  # noqa: SIM118 (a file, not a dictionary)
            sizes = file.get_slice(name).get_shape()
            box = boxes.get(name, {"shape": [], "offset": []})
            shape, offset = box["shape"], box["offset"]
            end = [begin + size for begin, size in zip(offset, sizes)]
            shards = self._shards.setdefault(name, [])
            fits = len(sizes) == len(shape) and all(stop <= size for stop, size in zip(end, shape))
            if shards and shards[0].shape != shape:
                fits = False
            if not fits:
                raise Refusal(f"the shards of {name} in the checkpoint do not fit together: it is damaged.")
            if all(offset != other.offset for other in shards):  # replicas save the same shard
                shards.append(Shard(file, offset, end, shape))

    def keys(self, weight: str) -> list[str]:
        """The keys of a weight's optimizer state that are tensors."""
        return self._keys.get(weight, [])

    def shape(self, name: str) -> list[int]:
        """The shape of a whole tensor."""
        return self._shards[name][0].shape

    def shards(self, name: str) -> list[Shard]:
        """The saved shards of a tensor; none where the checkpoint has no such tensor."""
        return self._shards.get(name, [])

    def covers(self, name: str, offset: list[int], size: list[int]) -> bool:
        """Whether the saved shards of a tensor have all of a part of it. offset, size: see `read`."""
        end = [begin + length for begin, length in zip(offset, size)]
        filled = 0
        for shard in self.shards(name):
            overlap = shard.overlap(offset, end) if len(shard.shape) == len(size) else None
            if overlap is not None:
                filled += math.prod(stop - begin for begin, stop in zip(*overlap))
        return filled == math.prod(size)

    def read(self, name: str, offset: list[int], size: list[int], shape: list[int]) -> torch.Tensor:
        """Part of a tensor, put together from the saved shards that overlap it.

        offset, size: of the part, in each dimension. shape: of the whole tensor.
        Raises Refusal if the checkpoint has no such tensor, or not all of the part.
        """
        shards = self._shards.get(name)
        if shards is None or self.shape(name) != shape:
            raise Refusal(
                f"the checkpoint has no {name} of shape {shape}: it is of another model, or was written in "
                "another mode. Resume it in the mode in which it was written."
            )
        end = [begin + length for begin, length in zip(offset, size)]
        overlaps = []
        filled = 0
        for shard in shards:
            overlap = shard.overlap(offset, end)
            if overlap is not None:
                overlaps.append((shard, *overlap))
                filled += math.prod(stop - begin for begin, stop in zip(*overlap))
        wanted = math.prod(size)
        if filled != wanted:  # before anything is allocated: a shape may be anything
            raise Refusal(f"the checkpoint has {filled} of {wanted} numbers of {name}: the shard of a rank is missing.")
        result = None
        for shard, low, high in overlaps:
            if low == shard.offset and high == shard.end:
                part = shard.file.get_tensor(name)
            else:
                part = shard.file.get_slice(name)[_slices(low, high, shard.offset)]
            if result is None:
                result = torch.empty(size, dtype=part.dtype)
            elif result.dtype != part.dtype:
                raise Refusal(f"the shards of {name} in the checkpoint have several types: it is damaged.")
            result[_slices(low, high, offset)] = part
        if result is None:  # a part without elements
            return torch.empty(size)
        return result


def _slices(low: list[int], high: list[int], origin: list[int]) -> tuple[slice, ...]:
    """The indices of a box in a tensor that begins at `origin` of the whole tensor."""
    return tuple(slice(begin - start, stop - start) for begin, stop, start in zip(low, high, origin))
