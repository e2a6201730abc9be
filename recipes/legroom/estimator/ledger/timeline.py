"""The memory of one step as data for a page: every tensor from its allocation to its free, and what made it."""

import heapq
import math
from typing import Any, Protocol

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
    start, events = _first_moment(log), log.events
    lives: dict[int, list] = {}  # id of an entry -> [start, end, entry]
    moments = len(events) - start + 1
    for index, (entry, sign) in enumerate(events):
        moment = max(0, index - start + 1)
        if sign > 0:
            lives[id(entry)] = [moment, moments, entry]
        elif id(entry) in lives:
            lives[id(entry)][1] = moment
    alive = [life for life in lives.values() if life[1] > 0]
    listed = heapq.nlargest(most_blocks, alive, key=lambda life: life[2].bytes) if len(alive) > most_blocks else alive
    peak = max(0, log.peak_index() - start + 1)
    names: dict[str, int] = {}
    blocks: dict[str, list[int]] = {key: [] for key in ("start", "end", "bytes", "kind", "name")}
    for first, end, entry in sorted(listed, key=lambda life: life[0]):
        name = names.setdefault(origins[id(entry)], len(names))
        for key, value in zip(blocks, (first, end, entry.bytes, KINDS.index(entry.kind), name)):
            blocks[key].append(value)
    kept = {id(entry) for _, _, entry in listed}
    others = [(first, end, entry) for first, end, entry in alive if id(entry) not in kept]
    return {
        "moments": moments,
        "kinds": list(KINDS),
        "phases": phases(log, start),
        "peak": peak,
        "names": list(names),
        "blocks": blocks,
        "rest": _rest(others, moments, peak),
    }


def _first_moment(log: StorageLog) -> int:
    """The index of the first event of the last step that is more than the notice of a tensor that was there before."""
    step = enumerate(log.events[log.step_start :], log.step_start)
    return next((at for at, (entry, sign) in step if sign < 0 or not entry.preexisting), len(log.events))


def phases(log: StorageLog, start: int) -> list[tuple[int, str]]:
    """(first moment, name) of each phase of the step, whose first event is `start`.

    An optimizer may step between parts of the backward pass. Those steps belong to it: of a
    hundred phases nobody would see anything.
    """
    found: list[tuple[int, str]] = []
    for moment, (entry, sign) in enumerate(log.events[start:], 1):
        if sign < 0 or entry.preexisting or (found and found[-1][1] == entry.phase):
            continue
        if entry.phase == "backward" and [name for _, name in found[-2:]] == ["backward", "step"]:
            found.pop()
        else:
            found.append((moment if found else 0, entry.phase))
    return found


def _rest(lives: list[tuple[int, int, StorageEntry]], moments: int, peak: int) -> dict[str, list]:
    """The sums of tensors that are not listed, at the moment of most bytes among every few moments, and at the peak."""
    if not lives:
        return {"at": [], "bytes": []}
    changes: list[dict[int, int]] = [{} for _ in range(moments + 1)]
    for first, end, entry in lives:
        kind = KINDS.index(entry.kind)
        changes[first][kind] = changes[first].get(kind, 0) + entry.bytes
        changes[end][kind] = changes[end].get(kind, 0) - entry.bytes
    width = math.ceil(moments / MOST_POINTS)
    now, best, best_sum = [0] * len(KINDS), [0] * len(KINDS), -1
    at_peak = list(now)
    found: dict[int, list[int]] = {}
    for moment in range(moments):
        if moment % width == 0:
            best_sum = -1
        for kind, change in changes[moment].items():
            now[kind] += change
        if sum(now) > best_sum:
            best, best_sum = list(now), sum(now)
        found[moment - moment % width] = best
        if moment == peak:
            at_peak = list(now)
    found[peak], found[peak + 1] = at_peak, found.get(peak + 1, found[peak - peak % width])
    at = sorted(moment for moment in found if moment < moments)
    return {"at": at, "bytes": [found[moment] for moment in at]}
