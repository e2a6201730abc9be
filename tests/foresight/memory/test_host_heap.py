"""The heap of glibc's malloc: when a step's memory is new to the process."""

from __future__ import annotations

from legroom.foresight.memory.host_heap import HEADER, MOST_THRESHOLD, HostHeap

MIB = 2**20


def steps_of(events: list[tuple[int, int]], count: int = 4) -> list[int]:
    """The fresh bytes of each of several equal steps."""
    heap, before, found = HostHeap(), 0, []
    for _ in range(count):
        heap.replay(events)
        found.append(heap.fresh_bytes - before)
        before = heap.fresh_bytes
    return found


def test_a_size_that_was_freed_once_comes_from_the_heap_after_that():
    first, second, third, *_ = steps_of([(1, MIB), (1, -1)])
    assert first >= MIB  # mapped by itself, which raises the threshold
    assert MIB < second < MIB + 4096  # from the heap, which grows
    assert third == 0  # and keeps less than twice the threshold


def test_a_long_free_end_is_given_back_each_time():
    events = [(key, MIB) for key in range(8)] + [(key, -1) for key in reversed(range(8))]
    *_, before, last = steps_of(events)
    assert before == last and 6 * MIB < last < 8 * MIB + 8 * 128


def test_what_is_kept_behind_holds_the_rest():
    heap = HostHeap()
    heap.replay([(0, MIB), (0, -1), *((key, MIB) for key in range(1, 9)), (9, 1000)])
    before = heap.fresh_bytes
    for _ in range(3):  # the last of them stays behind the gap
        heap.replay([*((key, -1) for key in range(1, 9)), *((key, MIB) for key in range(1, 9))])
    assert heap.fresh_bytes == before


def test_neighbours_that_are_free_make_room_for_more():
    heap = HostHeap()
    heap.replay([(0, 4 * MIB), (0, -1), (1, MIB), (2, MIB), (3, 1000)])
    before = heap.fresh_bytes
    heap.replay([(1, -1), (2, -1), (4, 2 * MIB - 4 * HEADER)])
    assert heap.fresh_bytes == before


def test_the_largest_tensors_are_left_to_their_operations():
    assert steps_of([(1, MOST_THRESHOLD + 1), (1, -1)]) == [0, 0, 0, 0]
