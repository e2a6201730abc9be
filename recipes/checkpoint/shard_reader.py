"""Reads tensors of a checkpoint from the shards that its ranks saved, also for another number of ranks."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import safe_open

from recipes.errors import Refusal
from recipes.records.checkpoint_files import Checkpoint


class ShardReader:
    """Reads tensors from the shards that the ranks of a checkpoint have saved."""

    def __init__(self, checkpoint: Checkpoint):
        self._shards: dict[str, list[tuple[Any, dict]]] = {}  # name -> (open file, shape and offset)
        self._keys: dict[str, list[str]] = {}  # a weight's name -> keys of its optimizer state
        for values in checkpoint.ranks:
            for file in values["files"]:
                opened = safe_open(checkpoint.folder / file, framework="pt")
                for name in opened.keys():  # noqa: SIM118 (a file, not a dictionary)
                    shards, box = self._shards.setdefault(name, []), values["boxes"][name]
                    if all(box["offset"] != other["offset"] for _, other in shards):  # replicas save the same shard
                        shards.append((opened, box))
        for name in self._shards:
            weight, _, key = name.rpartition("/")
            self._keys.setdefault(weight, []).append(key)

    def keys(self, weight: str) -> list[str]:
        """The keys of a weight's optimizer state that are tensors."""
        return self._keys.get(weight, [])

    def shape(self, name: str) -> list[int]:
        """The shape of a whole tensor."""
        return self._shards[name][0][1]["shape"]

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
        result, filled = None, 0
        for file, box in shards:
            shard = file.get_slice(name)
            ends = [begin + length for begin, length in zip(box["offset"], shard.get_shape())]
            low = [max(wanted, saved) for wanted, saved in zip(offset, box["offset"])]
            high = [min(wanted + length, saved) for wanted, length, saved in zip(offset, size, ends)]
            if any(begin >= end for begin, end in zip(low, high)):
                continue
            if low == box["offset"] and high == ends:
                part = file.get_tensor(name)
            else:
                part = shard[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, box["offset"]))]
            if result is None:
                result = torch.empty(size, dtype=part.dtype)
            result[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset))] = part
            filled += part.numel()
        wanted_numel = torch.Size(size).numel()
        if filled != wanted_numel:
            raise Refusal(
                f"the checkpoint has {filled} of {wanted_numel} numbers of {name}: the shard of a rank is missing."
            )
        return torch.empty(size) if result is None else result
