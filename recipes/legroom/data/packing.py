"""Several samples in one row of the batch, each with its own positions.

A packed row has `position_ids` (T,), which begin with 0 at each sample. The first token of a sample has no label: the
last one of the sample before it would predict it.
"""

import bisect
from collections.abc import Sequence

import datasets
import numpy

from legroom.data import rows
from legroom.data.collate import IGNORE_INDEX


def packed(samples: datasets.Dataset, room: int) -> datasets.Dataset:
    """The samples in rows of at most `room` tokens. samples: rows of `rows.ragged`, none longer than `room`."""
    ids, ends = rows.flat(samples, "input_ids")
    labels, _ = rows.flat(samples, "labels")
    starts = ends - rows.lengths(samples)

    def row(indices: list[int]) -> dict[str, numpy.ndarray]:
        row_ids = []
        row_labels = []
        positions = []
        for index in indices:
            sample = slice(starts[index], ends[index])
            sample_labels = labels[sample].copy()
            sample_labels[0] = IGNORE_INDEX
            row_ids.append(ids[sample])
            row_labels.append(sample_labels)
            positions.append(numpy.arange(len(sample_labels)))
        return {
            "input_ids": numpy.concatenate(row_ids),
            "labels": numpy.concatenate(row_labels),
            "position_ids": numpy.concatenate(positions),
        }

    return rows.ragged(row(indices) for indices in bins(rows.lengths(samples).tolist(), room))


def bins(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Indices of samples for each row: the longest first, each into the fullest row that has room for it (best fit).

    lengths: of the samples, none above `room`, which is that of a row.
    """
    packed_rows: list[list[int]] = []
    rows_with_room: dict[int, list[int]] = {}  # tokens of room that are left -> the rows
    rooms: list[int] = []  # the keys of `rows_with_room`, in order
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        place = bisect.bisect_left(rooms, lengths[index])
        if place == len(rooms):  # no row has room
            left = room
            row = len(packed_rows)
            packed_rows.append([])
        else:
            left = rooms[place]
            row = rows_with_room[left].pop()
            if not rows_with_room[left]:
                del rows_with_room[left]
                del rooms[place]
        packed_rows[row].append(index)
        left -= lengths[index]
        if left not in rows_with_room:
            rows_with_room[left] = []
            bisect.insort(rooms, left)
        rows_with_room[left].append(row)
    return packed_rows
