"""The log of storages and its timeline, from made-up allocations and frees."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from legroom.estimator.ledger import timeline as timelines
from legroom.estimator.ledger.kinds import KINDS, OTHER, PARAMETER
from legroom.estimator.ledger.storage_log import StorageEntry, StorageLog
from legroom.estimator.ledger.timeline import timeline


def of(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8)


def seen(log: StorageLog) -> list[tuple[int, int]]:
    return [(sign, entry.bytes) for entry, sign in log.events]


def test_a_storage_is_logged_once_and_freed_once():
    log: Any = StorageLog("cpu")
    told = []
    log.on_allocation = told.append
    tensor = of(5)
    entry = log.record(tensor, PARAMETER, True)
    assert log.record(tensor[1:3], OTHER) is entry is log.entry_of(tensor) and told == [entry]
    assert (entry.kind, entry.preexisting, entry.paged, entry.phase) == (PARAMETER, True, False, "forward")
    assert log.record(of(3), OTHER).preexisting is False
    del tensor
    gc.collect()
    assert seen(log) == [(1, 5), (1, 3), (-1, 3), (-1, 5)] and log.entry_of(of(5)) is None


def test_passing_sizes_are_alive_as_many_at_once_as_is_said():
    log = StorageLog("cpu")
    log.add_passing_sizes([5, 6, 7], OTHER, at_once=2)
    assert seen(log) == [(1, 5), (1, 6), (-1, 5), (1, 7), (-1, 6), (-1, 7)]


def test_what_is_on_another_device_or_sparse_has_no_entry():
    log: Any = StorageLog("meta")
    assert log.record(of(5), OTHER) is None and log.record(torch.ones(2, 2).to_sparse(), OTHER) is None
    paged: Any = of(7)
    paged.is_paged = True  # bitsandbytes' states, which say they are on the CPU
    entry = log.record(paged, OTHER, True)
    assert (entry.bytes, entry.paged, entry.preexisting) == (7, True, True)
    there = torch.empty(2, device="meta")
    assert log.record(there, OTHER).bytes == 8 and seen(log) == [(1, 7), (1, 8)]


def test_a_resized_storage_is_freed_and_allocated_anew():
    log: Any = StorageLog("cpu")
    tensor, fresh = of(4), of(6)
    log.record(tensor, PARAMETER)
    log.resized(tensor.untyped_storage(), 4, OTHER)  # as large as before
    assert seen(log) == [(1, 4)]
    tensor.untyped_storage().resize_(9)
    log.resized(tensor.untyped_storage(), 4, OTHER)
    assert seen(log) == [(1, 4), (-1, 4), (1, 9)] and log.entry_of(tensor).kind == OTHER
    log.resized(fresh.untyped_storage(), 4, OTHER)  # the log did not know it
    assert seen(log)[3:] == [(1, 6)]
    StorageLog("cuda").resized(fresh.untyped_storage(), 4, OTHER)
    log.resized(torch.empty(3, device="meta").untyped_storage(), 4, OTHER)
    assert len(log.events) == 4


def entry(size: int, preexisting: bool = False, kind: str = OTHER, phase: str = "forward") -> StorageEntry:
    return StorageEntry(size, kind, phase, preexisting)


def made_up(*events: tuple[StorageEntry, int], start: int = 0) -> StorageLog:
    log = StorageLog("cpu")
    log.events, log.step_start = list(events), start
    return log


def test_what_was_there_before_the_step_moves_to_its_beginning():
    """If it is still alive, and only in the last step."""
    log = StorageLog("cpu")
    tensors = {size: of(size) for size in (1, 2, 3, 4)}
    log.record(tensors[1], OTHER, True)
    log.step_start = 1
    log.record(tensors[2], OTHER)
    log.record(tensors[3], OTHER, True)
    del tensors[3]
    gc.collect()
    log.record(tensors[4], OTHER, True)
    log.record(of(9), OTHER, True)  # of gloo, and freed
    assert seen(log) == [(1, 1), (1, 2), (1, 3), (-1, 3), (1, 4), (1, 9), (-1, 9)]
    assert log.move_preexisting_first() == [4]
    assert seen(log) == [(1, 1), (1, 4), (1, 2), (1, 3), (-1, 3), (1, 9), (-1, 9)]


@pytest.mark.parametrize(
    "signs, start, peak",
    [
        ([5, -5, 4, 1, -1], 0, 0),  # the first of two moments of as much
        ([5, -5, 4, 2, -2], 0, 3),
        ([5, -5, 4, -4], 2, 2),  # more was alive before the step
        ([5, -5, 4, -4], 1, 0),  # the moment before its first event belongs to it
        ([5, -5, 3, 4, -3], 3, 3),
    ],
)
def test_the_peak_is_the_first_moment_of_most_bytes_in_the_last_step(signs, start, peak):
    log = made_up(*((entry(abs(size)), 1 if size > 0 else -1) for size in signs), start=start)
    assert log.peak_index() == peak


class Named:
    """In the place of TensorOrigins."""

    def __init__(self, log: StorageLog):
        self.names = {id(each): f"made {each.bytes}" for each, _ in log.events}

    def __getitem__(self, key: int) -> str:
        return self.names[key]


def drawn(log: StorageLog, most: int) -> dict[str, Any]:
    origins: Any = Named(log)
    return timeline(log, origins, most)


def test_the_timeline_of_a_step_without_events_is_one_moment():
    log = made_up((entry(5, True), 1), start=1)
    found = drawn(log, timelines.MOST_BLOCKS)
    assert (found["moments"], found["peak"], found["phases"]) == (1, 0, [])
    assert found["blocks"] == {"start": [0], "end": [1], "bytes": [5], "kind": [KINDS.index(OTHER)], "name": [0]}
    assert found["rest"] == {"at": [], "bytes": []}


def test_a_phase_that_returns_is_another():
    def of_phases(*names):
        log = made_up(*((entry(1, phase=name), 1) for name in names))
        return [name for _, name in timelines.phases(log, 0)]

    assert of_phases("forward", "backward", "step", "backward", "step") == ["forward", "backward", "step"]
    assert of_phases("forward", "backward", "forward", "backward") == ["forward", "backward"] * 2
    assert of_phases("forward", "step", "backward") == ["forward", "step", "backward"]
    assert of_phases("step") == ["step"]
