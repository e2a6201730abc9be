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
        parts = [slice(starts[index], ends[index]) for index in indices]
        wanted = [labels[part].copy() for part in parts]
        for each in wanted:
            each[0] = IGNORE_INDEX
        return {
            "input_ids": numpy.concatenate([ids[part] for part in parts]),
            "labels": numpy.concatenate(wanted),
            "position_ids": numpy.concatenate([numpy.arange(part.stop - part.start) for part in parts]),
        }

    return rows.ragged(row(indices) for indices in bins(rows.lengths(samples).tolist(), room))


def bins(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Indices of samples for each row: the longest first, each into the row that it leaves the least room in.

    lengths: of the samples, none above `room`, which is that of a row.
    """
    found: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # room that is left -> rows
    rooms: list[int] = []  # the keys of `with_room`, in order
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        place = bisect.bisect_left(rooms, lengths[index])
        if place == len(rooms):
            left, number = room, len(found)
            found.append([])
        else:
            left = rooms[place]
            number = with_room[left].pop()
            if not with_room[left]:
                del with_room[left], rooms[place]
        found[number].append(index)
        left -= lengths[index]
        if left not in with_room:
            with_room[left] = []
            bisect.insort(rooms, left)
        with_room[left].append(number)
    return found
