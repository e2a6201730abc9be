"""Rows as a datasets.Dataset in the torch format, windows over a text, and the choice of some out of many rows."""

import itertools
from array import array
from collections.abc import Iterable
from typing import Any

import datasets
import numpy
import pyarrow
import xxhash
from pyarrow import compute

from legroom.data import collate


def dataset(ids: Any, labels: Any) -> datasets.Dataset:
    """Rows of ids (T,), of any lengths, and labels () or (T,)."""
    return datasets.Dataset.from_dict({"input_ids": ids, "labels": labels}).with_format("torch")


def lengths(part: datasets.Dataset) -> numpy.ndarray:
    """The tokens of each row, (N,)."""
    ids = part.with_format("arrow")["input_ids"]
    return compute.call_function("list_value_length", [ids]).to_numpy()


def flat(part: datasets.Dataset, key: str) -> tuple[numpy.ndarray, numpy.ndarray]:
    """(all values of a column of lists one after the other, where each row ends in them)."""
    column = part.with_format("arrow")[:][key]
    counts = compute.call_function("list_value_length", [column]).to_numpy()
    return compute.call_function("list_flatten", [column]).to_numpy(), numpy.cumsum(counts)


def digest(part: datasets.Dataset) -> str:
    """A hash of all values of the rows, in their order."""
    found = xxhash.xxh3_128()  # ten times as fast as SHA: a billion tokens are 12 GB
    arrow: Any = part.with_format("arrow")
    for table in arrow.iter(batch_size=1000):
        for name in sorted(table.column_names):
            column = table[name].combine_chunks()
            if pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type):
                found.update(compute.call_function("list_value_length", [column]).to_numpy())
                column = compute.call_function("list_flatten", [column])
            found.update(column.to_numpy(zero_copy_only=False))
    return found.hexdigest()


def samples_in(part: datasets.Dataset) -> numpy.ndarray:
    """The samples in each row, (N,): 1, or more if they are packed."""
    if "position_ids" not in part.column_names:
        return numpy.ones(len(part), dtype=numpy.int64)
    positions, ends = flat(part, "position_ids")
    begun = numpy.concatenate([[0], numpy.cumsum(positions == 0)])
    return numpy.diff(begun[numpy.concatenate([[0], ends])])


def chosen(count: int, most: int | None, seed: int) -> list[int]:
    """The indices, in their order, of at most `most` of `count` rows, drawn by a seed."""
    if most is None or count <= most:
        return list(range(count))
    return sorted(numpy.random.default_rng(seed).choice(count, most, replace=False).tolist())


def windows(
    tokens: numpy.ndarray,
    window: int,
    stride: int,
    spans: list[tuple[int, int]] | None = None,
    most: int | None = None,
    seed: int = 0,
) -> tuple[datasets.Dataset, int]:
    """Rows of a sliding window: each token of the spans has a label once, with the tokens before it as context.

    tokens: (N,) ids. window: tokens in a row, at most. stride: tokens by which the window moves.
    spans: (first, last) positions of tokens that get labels; None: all. most: keep so many rows, drawn by `seed`.
    Labels are IGNORE_INDEX for tokens that an earlier window has labelled, or that precede the span. The first token
    of a row is never predicted: without overlap (stride = window) that is one token per row, with overlap only the
    first of all. Returns the rows, and how many there are without `most`.
    """
    places = []  # (begin, end, first token with a label) of each row
    for first, last in spans or [(0, len(tokens))]:
        labelled_until = first
        for begin in itertools.count(max(0, first - (window - stride)), stride):
            end = min(begin + window, last)
            if end - begin < 2:  # one token predicts nothing
                break
            places.append((begin, end, labelled_until))
            labelled_until = end
            if end == last:
                break
    ids = []
    labels = []
    for index in chosen(len(places), most, seed):
        begin, end, first_label = places[index]
        row_labels = tokens[begin:end].copy()
        row_labels[: first_label - begin] = collate.IGNORE_INDEX
        ids.append(tokens[begin:end])
        labels.append(row_labels)
    return dataset(ids, labels), len(places)


def ragged(rows: Iterable[dict[str, Any]]) -> datasets.Dataset:
    """Rows of any lengths; each value is a list of numbers, mostly of one for each token, or one number. Kept in flat
    arrays of 64 bits a number."""
    values: dict[str, array] = {}
    ends: dict[str, array] = {}  # of the columns of lists
    for row in rows:
        for key, value in row.items():
            is_number = isinstance(value, (int, float))
            if key not in values:
                first = value if is_number else value[0]
                values[key] = array("d" if isinstance(first, float) else "q")
                if not is_number:
                    ends[key] = array("q", [0])
            if is_number:
                values[key].append(value)
                continue
            values[key].extend(value.tolist() if isinstance(value, numpy.ndarray) else value)
            ends[key].append(len(values[key]))
    columns = {}
    for key, flat in values.items():
        column = pyarrow.array(numpy.frombuffer(flat, dtype=flat.typecode))
        if key in ends:
            column = pyarrow.LargeListArray.from_arrays(pyarrow.array(numpy.frombuffer(ends[key], numpy.int64)), column)
        columns[key] = column
    return datasets.Dataset(pyarrow.table(columns)).with_format("torch")
