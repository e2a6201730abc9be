"""The memory of one step as data for a page: every tensor from its allocation to its free, and what made it."""

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from legroom.estimator.ledger.kinds import KINDS
from legroom.estimator.ledger.storage_log import StorageEntry, StorageLog

MOST_BLOCKS = 12_000  # tensors that are listed one by one; the smaller ones are summed up
MOST_POINTS = 1_000  # of the sums of the others


class Origins(Protocol):
    """What made each storage, by the id of its entry: a TensorOrigins, or those of a recording."""

    def __getitem__(self, entry_id: int, /) -> str: ...


def timeline(log: StorageLog, origins: Origins, most_blocks: int = MOST_BLOCKS) -> dict[str, Any]:
    """The last step of a log, in JSON's types.

    Moment 0 is the beginning of the step; each allocation and each free is one moment more. A block is a tensor's
    storage, alive from the moment `start` until before the moment `end`, so that the blocks alive at a moment and
    `rest` sum to the live bytes.

    moments: their number. kinds: names of the parts. phases: [first moment, name]. peak: the moment of most bytes.
    names: of modules and operations. blocks: lists of equal length; kind and name are indices. rest: the tensors that
    are not listed, because there are more than `most_blocks`: the moments, and the bytes of each kind at them; a value
    holds until the next moment. The peak is among the moments.
    """
    start = _first_moment(log)
    moments = len(log.events) - start + 1
    peak = max(0, log.peak_index() - start + 1)
    alive = [life for life in _lives(log, start, moments) if life.end > 0]
    listed = alive
    if len(alive) > most_blocks:
        listed = heapq.nlargest(most_blocks, alive, key=lambda life: life.entry.bytes)
    names: dict[str, int] = {}
    blocks: dict[str, list[int]] = {"start": [], "end": [], "bytes": [], "kind": [], "name": []}
    for life in sorted(listed, key=lambda life: life.start):
        blocks["start"].append(life.start)
        blocks["end"].append(life.end)
        blocks["bytes"].append(life.entry.bytes)
        blocks["kind"].append(KINDS.index(life.entry.kind))
        blocks["name"].append(names.setdefault(origins[id(life.entry)], len(names)))
    listed_ids = {id(life.entry) for life in listed}
    others = [life for life in alive if id(life.entry) not in listed_ids]
    return {
        "moments": moments,
        "kinds": list(KINDS),
        "phases": phases(log, start),
        "peak": peak,
        "names": list(names),
        "blocks": blocks,
        "rest": _rest(others, moments, peak),
    }


class Life(NamedTuple):
    """A storage from the moment `start` until before the moment `end`."""

    start: int
    end: int
    entry: StorageEntry


def _lives(log: StorageLog, first: int, moments: int) -> Iterable[Life]:
    """The life of each storage; 0 is the moment of all that was before the event with the index `first`."""
    starts: dict[int, int] = {}  # by the id of the entry
    ends: dict[int, int] = {}
    entries: dict[int, StorageEntry] = {}
    for index, (entry, sign) in enumerate(log.events):
        moment = max(0, index - first + 1)
        if sign > 0:
            starts[id(entry)] = moment
            ends[id(entry)] = moments
            entries[id(entry)] = entry
        elif id(entry) in ends:
            ends[id(entry)] = moment
    return [Life(starts[key], ends[key], entry) for key, entry in entries.items()]


def _first_moment(log: StorageLog) -> int:
    """The index of the first event of the last step that is more than the notice of a tensor that was there before."""
    for index, (entry, sign) in enumerate(log.events[log.step_start :], log.step_start):
        if sign < 0 or not entry.preexisting:
            return index
    return len(log.events)


def phases(log: StorageLog, start: int) -> list[tuple[int, str]]:
    """(first moment, name) of each phase of the step, whose first event is `start`.

    An optimizer may step between parts of the backward pass. Those steps belong to it: of a
    hundred phases nobody would see anything.
    """
    begun: list[tuple[int, str]] = []
    for moment, (entry, sign) in enumerate(log.events[start:], 1):
        if sign < 0 or entry.preexisting or (begun and begun[-1][1] == entry.phase):
            continue
        if entry.phase == "backward" and [name for _, name in begun[-2:]] == ["backward", "step"]:
            begun.pop()
        elif begun:
            begun.append((moment, entry.phase))
        else:
            begun.append((0, entry.phase))
    return begun


def _rest(lives: list[Life], moments: int, peak: int) -> dict[str, list]:
    """The sums of tensors that are not listed, at the moment of most bytes among every few moments, and at the peak."""
    if not lives:
        return {"at": [], "bytes": []}
    changes: list[Counter[int]] = [Counter() for _ in range(moments + 1)]  # of the bytes of each kind, by moment
    for life in lives:
        kind = KINDS.index(life.entry.kind)
        changes[life.start][kind] += life.entry.bytes
        changes[life.end][kind] -= life.entry.bytes
    width = math.ceil(moments / MOST_POINTS)
    sums = [0] * len(KINDS)
    at_peak = sums
    points: dict[int, list[int]] = {}  # the first of every few moments -> the sums at that of most bytes among them
    for moment in range(moments):
        for kind, change in changes[moment].items():
            sums[kind] += change
        point = moment - moment % width
        if moment == point or sum(sums) > sum(points[point]):
            points[point] = list(sums)
        if moment == peak:
            at_peak = list(sums)
    points.setdefault(peak + 1, points[peak - peak % width])
    points[peak] = at_peak
    at = sorted(moment for moment in points if moment < moments)
    return {"at": at, "bytes": [points[moment] for moment in at]}
