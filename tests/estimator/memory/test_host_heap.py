"""Which memory of freed tensors stays resident on a CPU: the rules of glibc's malloc."""

from __future__ import annotations

import random

import pytest

from legroom.estimator.memory.host_heap import MIB, HostHeap, replay

LARGE, SMALL = 64 * MIB, 4096


def test_a_large_block_goes_back_to_the_system():
    heap = HostHeap()
    heap.allocate("weights", LARGE)
    assert LARGE <= heap.resident < LARGE + MIB
    heap.free("weights")
    assert heap.resident == 0 and heap.peak >= LARGE


def test_what_is_freed_below_the_end_of_the_heap_stays():
    heap = HostHeap()
    for index in range(1000):
        heap.allocate(index, SMALL)
    before = heap.resident
    for index in range(999):
        heap.free(index)
    assert heap.resident == before


def test_a_heap_that_ends_free_shrinks():
    heap = HostHeap()
    for index in range(1000):
        heap.allocate(index, SMALL)
    for index in range(1000):
        heap.free(index)
    for _ in range(2000):  # meanwhile small objects between the blocks are freed too
        heap.allocate("again", SMALL)
        heap.free("again")
    assert heap.resident < 1000 * SMALL / 2


def test_a_freed_mapping_moves_the_border_so_that_the_next_one_stays_in_the_heap():
    heap = HostHeap()
    for _ in range(2):
        heap.allocate("first", 16 * MIB)
        heap.allocate("behind", SMALL)
        heap.free("first")
        kept = heap.resident
        heap.free("behind")
    assert kept >= 16 * MIB  # the second time


@pytest.mark.parametrize("seed", range(5))
def test_resident_is_never_less_than_what_is_held(seed):
    draw = random.Random(seed)
    held: dict[int, int] = {}
    heap = HostHeap()
    for key in range(2000):
        if held and draw.random() < 0.45:
            gone = draw.choice(list(held))
            del held[gone]
            heap.free(gone)
        held[key] = draw.choice([SMALL, 300_000, MIB, 40 * MIB])
        heap.allocate(key, held[key])
        assert heap.peak >= heap.resident >= sum(held.values())


def test_a_replay_frees_what_its_requests_free():
    assert replay([(0, LARGE), (1, LARGE), (0, -1), (1, -1)]).resident == 0
