"""How a text becomes rows, rows become batches, and ranks share them, by tables of small numbers."""

from __future__ import annotations

import pytest
import torch

from legroom.data import collate, packing
from legroom.data.data_loader import DistributedBatchSampler

IGNORED = -100  # a label that no loss counts


# tokens of the text, length of a window, step to the next one -> (tokens, those of them that are labels) of each row


@pytest.mark.parametrize(
    ("multiple", "longest", "lengths"),
    [
        (1, 9, {1: 1, 5: 5, 9: 9}),
        (4, 9, {1: 4, 4: 4, 5: 8, 9: 9}),  # never beyond the longest row that the model takes
        (4, 7, {5: 7}),
        (8, 32, {5: 8, 9: 16}),
    ],
)
def test_a_batch_is_padded_to_a_multiple(multiple, longest, lengths):
    padding = collate.Padding(multiple, longest, 0, with_mask=True)
    assert {length: padding.length(length) for length in lengths} == lengths


@pytest.mark.parametrize(
    ("side", "ids", "labels", "mask", "positions"),
    [
        (
            "right",
            [[5, 6, 7, 9], [8, 9, 9, 9]],
            [[5, 6, 7, IGNORED], [8, IGNORED, IGNORED, IGNORED]],
            [[1, 1, 1, 0], [1, 0, 0, 0]],
            [[0, 1, 2, 0], [3, 0, 0, 0]],
        ),
        (
            "left",
            [[9, 5, 6, 7], [9, 9, 9, 8]],
            [[IGNORED, 5, 6, 7], [IGNORED, IGNORED, IGNORED, 8]],
            [[0, 1, 1, 1], [0, 0, 0, 1]],
            [[0, 0, 1, 2], [0, 0, 0, 3]],
        ),
    ],
)
def test_rows_of_different_lengths_are_padded(side, ids, labels, mask, positions):
    padding_token = 9
    batch = [
        {"input_ids": [5, 6, 7], "labels": [5, 6, 7], "position_ids": [0, 1, 2]},
        {"input_ids": [8], "labels": [8], "position_ids": [3]},
    ]
    tensors = [{key: torch.tensor(value) for key, value in row.items()} for row in batch]
    made = collate.Padding(4, 32, padding_token, True, side)(tensors)
    assert {key: value.tolist() for key, value in made.items()} == {
        "input_ids": ids,
        "labels": labels,
        "attention_mask": mask,
        "position_ids": positions,
    }


@pytest.mark.parametrize(
    ("lengths", "together"),
    [
        ([3, 3, 3], [[0], [1], [2]]),
        ([1, 2, 3, 4], [[3], [2, 0], [1]]),  # the longest first, each to the fullest row with room
        ([2, 2, 2, 2, 2], [[0, 1], [2, 3], [4]]),
        ([1, 1, 1, 1, 1], [[0, 1, 2, 3], [4]]),
        ([], []),
    ],
)
def test_samples_are_packed_into_rows_of_four(lengths, together):
    assert packing.bins(lengths, 4) == together


@pytest.mark.parametrize(
    ("count", "per_rank", "ranks", "expected"),
    [
        (8, 2, 2, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
        (9, 2, 2, [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [0]]]),  # the second rank repeats a row that does not count
        (6, 2, 1, [[[0, 1], [2, 3], [4, 5]]]),
        (7, 1, 3, [[[0], [3], [6]], [[1], [4], [0]], [[2], [5], [0]]]),
    ],
)
def test_ranks_share_the_rows_of_each_batch(count, per_rank, ranks, expected):
    parts = [DistributedBatchSampler(count, per_rank, None, rank, ranks) for rank in range(ranks)]
    assert [list(part) for part in parts] == expected
    # (rows of this rank that count, rows of all ranks)
    counted = [sum(part.sizes(index)[0] for index in range(len(part))) for part in parts]
    assert sum(counted) == count
