"""Optimizer states in few bits in a checkpoint: whatever ranks saved rows of them, any other ranks read them."""

from __future__ import annotations

import pytest

pytest.importorskip("torchao")

import torch
import torchao.optim
from safetensors.torch import save_file

from legroom.checkpoint import blocks
from legroom.checkpoint.blocks import Box
from legroom.checkpoint.shard_reader import ShardReader
from legroom.compat import torchao_private
from legroom.compat.torch_private import parts_of
from legroom.errors import Refusal
from legroom.records.checkpoint_files import Checkpoint

KINDS = ["AdamW8bit", "AdamW4bit", "AdamWFp8"]
WHOLE = [(0, 48)]


def optimizer_of(kind: str, weight: torch.nn.Parameter):
    return getattr(torchao.optim, kind)([weight])


def saved(tmp_path, kind: str, numbers: torch.Tensor, splits: list[tuple[int, int]]) -> tuple[ShardReader, list]:
    """A checkpoint in which each rank saved a state of the rows first to last, and these states."""
    ranks, states = [], []
    for rank, (first, last) in enumerate(splits):
        weight = torch.nn.Parameter(torch.zeros(last - first, *numbers.shape[1:]))
        state = torchao_private.new_state(optimizer_of(kind, weight), weight, "exp_avg")
        state.copy_(numbers[first:last])
        rows = Box([first, *[0] * (numbers.dim() - 1)], list(numbers.shape))
        if parts_of(state):
            pieces = blocks.pieces("w/exp_avg", state, rows)
        else:
            pieces = {"w/exp_avg": (state, rows)}
        save_file({name: tensor.contiguous() for name, (tensor, _) in pieces.items()}, tmp_path / f"{rank}.safetensors")
        boxes = {name: {"shape": box.shape, "offset": box.offset} for name, (_, box) in pieces.items()}
        ranks.append({"files": [f"{rank}.safetensors"], "boxes": boxes})
        states.append(state)
    return ShardReader(Checkpoint(tmp_path, 1, ranks)), states


def restored(reader: ShardReader, kind: str, shape: list[int], first: int, last: int) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.zeros(last - first, *shape[1:]))
    rows = Box([first, *[0] * (len(shape) - 1)], shape)
    return blocks.restore(optimizer_of(kind, weight), weight, "w", "exp_avg", rows, reader)


def numbers_of(state) -> torch.Tensor:
    return torchao_private.numbers(state) if parts_of(state) else state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [WHOLE, [(0, 24), (24, 48)], [(0, 16), (16, 32), (32, 48)]])
def test_shards_of_whole_blocks_are_read_bit_for_bit(tmp_path, kind, before):
    """By any ranks whose shards are of whole blocks."""
    numbers = torch.randn(48, 512)
    reader, states = saved(tmp_path, kind, numbers, before)
    whole = torch.cat([numbers_of(state) for state in states])
    for after in (WHOLE, [(0, 12), (12, 48)], [(0, 8), (40, 48)]):
        for first, last in after:
            state = restored(reader, kind, [48, 512], first, last)
            assert parts_of(state) and numbers_of(state).equal(whole[first:last])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [[48, 96 + 4], [8192], [40, 8, 25]])
@pytest.mark.parametrize("before", [2, 3])
def test_other_shards_are_read_but_for_a_rounding(tmp_path, kind, shape, before):
    """Of a width that blocks do not divide, some ranks have blocks and others numbers, and so has a small shard."""
    numbers, rows = torch.randn(shape), shape[0]
    chunk = -(-rows // before)
    splits = [(first, min(first + chunk, rows)) for first in range(0, rows, chunk)]
    reader, states = saved(tmp_path, kind, numbers, splits)
    whole = torch.cat([numbers_of(state) for state in states])
    for first, last in ((0, rows), (rows // 4, rows), (rows // 2, rows // 2 + 1)):
        state = restored(reader, kind, shape, first, last)
        largest = whole.abs().max()
        assert (numbers_of(state) - whole[first:last]).abs().max() <= (0.25 if kind == "AdamW4bit" else 0.07) * largest
        if not parts_of(state):
            assert state.equal(whole[first:last]), "numbers stay what they were"


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_shard_is_refused(tmp_path, kind):
    reader, _ = saved(tmp_path, kind, torch.randn(48, 512), [(0, 16), (32, 48)])
    with pytest.raises(Refusal, match="the shard of a rank is missing"):
        restored(reader, kind, [48, 512], 0, 48)


def test_a_state_that_the_optimizer_does_not_have_is_an_error(tmp_path):
    reader, _ = saved(tmp_path, "AdamW8bit", torch.randn(48, 512), WHOLE)
    weight = torch.nn.Parameter(torch.zeros(48, 512))
    with pytest.raises(ValueError):
        blocks.restore(optimizer_of("AdamW8bit", weight), weight, "w", "momentum", Box([0, 0], [48, 512]), reader)
