"""The allocator model, by hand: every figure below follows from the rules of CUDACachingAllocator.cpp."""

from __future__ import annotations

import time

import pytest

from legroom.estimator.memory.allocator import EMPTY_CACHE, Allocator, replay
from legroom.estimator.memory.settings import MIB, Settings, settings_from


@pytest.mark.parametrize(
    "asked,allocated,reserved",
    [
        (1, 512, 2 * MIB),  # rounded up to 512, in a small segment
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest small request
        (MIB + 1, MIB + 512, 20 * MIB),  # the least large one: a block of a 20 MiB segment
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # from 10 MiB on a segment of its own, rounded up to 2 MiB
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # 2 MiB less 512 bytes are left: more than 1 MiB, so it is split off
        (11 * MIB, 12 * MIB, 12 * MIB),  # exactly 1 MiB is left: too little for a block of its own
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
    ],
)
def test_one_request(asked, allocated, reserved):
    allocator = Allocator()
    allocator.malloc(asked)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_small_requests_share_a_segment_until_it_is_full():
    allocator = Allocator()
    for _ in range(2):
        allocator.malloc(MIB)
    assert allocator.reserved == 2 * MIB
    allocator.malloc(512)
    assert allocator.reserved == 4 * MIB


def test_the_smallest_free_block_that_fits_is_taken():
    allocator = Allocator()
    large, small = allocator.malloc(40 * MIB), allocator.malloc(30 * MIB)
    address = small.address
    allocator.free(large)
    allocator.free(small)
    assert allocator.malloc(30 * MIB).address == address
    assert allocator.reserved == 70 * MIB


def test_among_equals_the_lowest_address_is_taken():
    allocator = Allocator()
    blocks = [allocator.malloc(20 * MIB) for _ in range(3)]
    for block in reversed(blocks):
        allocator.free(block)
    assert allocator.malloc(20 * MIB).address == blocks[0].address


def test_neighbours_merge_and_serve_a_larger_request():
    allocator = Allocator()
    first, second, third = (allocator.malloc(6 * MIB) for _ in range(3))  # one segment of 20 MiB
    allocator.free(first)
    allocator.free(third)  # with the 2 MiB behind it
    assert [size for size, _ in allocator.large.free] == [6 * MIB, 8 * MIB]
    allocator.free(second)
    assert [size for size, _ in allocator.large.free] == [20 * MIB]
    allocator.malloc(18 * MIB)
    assert allocator.reserved == 20 * MIB


def test_a_large_block_is_not_split_for_the_sake_of_one_mib():
    allocator = Allocator()
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(19 * MIB)
    assert allocator.allocated == 20 * MIB  # 'allocated' counts blocks, not requests
    assert allocator.peak_allocated == 20 * MIB


def test_pools_do_not_help_each_other():
    allocator = Allocator()
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(512)
    assert allocator.reserved == 22 * MIB


def test_full_cached_segments_go_back_and_the_request_is_tried_again():
    allocator = Allocator(capacity=50 * MIB)
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(40 * MIB)  # 30 + 40 do not fit: the first segment is free as a whole
    assert (allocator.reserved, allocator.releases, allocator.peak_reserved) == (40 * MIB, 1, 40 * MIB)


def test_a_small_cached_segment_goes_back_before_memory_is_missing():
    allocator = Allocator(capacity=42 * MIB)
    allocator.free(allocator.malloc(512))  # a segment of 2 MiB in the small pool
    allocator.malloc(40 * MIB)
    assert allocator.reserved == 42 * MIB
    allocator.malloc(20 * MIB)
    assert allocator.capacity == (42 + 18) * MIB and allocator.reserved == (40 + 20) * MIB
    assert allocator.releases == 1


def test_a_segment_of_which_a_part_is_taken_stays():
    allocator = Allocator(capacity=50 * MIB)
    first, _ = allocator.malloc(15 * MIB), allocator.malloc(15 * MIB)
    allocator.free(first)  # a segment of 16 MiB: 15 and the 1 MiB that was no block of its own
    allocator.malloc(2 * MIB)  # split from the free segment, which is thereby held
    allocator.malloc(20 * MIB)
    assert allocator.capacity == 2 * 16 * MIB + 20 * MIB, "all that was missing"


def test_past_the_capacity_it_says_how_much_is_missing():
    events = [(1, 30 * MIB), (2, 30 * MIB), (1, -1), (3, 12 * MIB)]
    assert replay(events).missing_bytes == 0
    demand = replay(events, capacity=50 * MIB)
    assert (demand.missing_bytes, demand.peak_reserved_bytes) == (10 * MIB, 60 * MIB)


def test_an_empty_tensor_asks_for_nothing():
    demand = replay([(1, 0), (1, -1)])
    assert (demand.peak_allocated_bytes, demand.peak_reserved_bytes) == (0, 0)


def test_a_program_gives_back_what_it_has_cached():
    freed = [(1, 30 * MIB), (1, -1)]
    assert replay([*freed, EMPTY_CACHE, (2, 40 * MIB)]).peak_reserved_bytes == 40 * MIB
    assert replay([*freed, (2, 0), (2, -1), (3, 40 * MIB)]).peak_reserved_bytes == 70 * MIB


# --- max_split_size ---------------------------------------------------------------------------------


def test_blocks_past_max_split_size_are_left_whole():
    allocator = Allocator(settings=Settings(max_split_size=50 * MIB))
    allocator.free(allocator.malloc(100 * MIB))
    allocator.malloc(20 * MIB)  # may not have a part of the 100
    assert allocator.reserved == 120 * MIB
    allocator.malloc(90 * MIB)  # may have all of it: 10 MiB too much are within the limit of 20
    assert allocator.reserved == 120 * MIB and allocator.allocated == 120 * MIB


@pytest.mark.parametrize(
    "cached, asked, reserved, allocated",
    [(50, 40, 90, 40), (50, 50, 50, 50), (58, 50, 58, 58), (60, 50, 110, 50)],  # MiB
)
def test_blocks_at_max_split_size_are_not_split(cached, asked, reserved, allocated):
    allocator = Allocator(settings=Settings(max_split_size=50 * MIB, max_non_split_rounding=10 * MIB))
    oversized(allocator, cached)
    allocator.malloc(asked * MIB)
    assert (allocator.reserved, allocator.allocated) == (reserved * MIB, allocated * MIB)


def oversized(allocator: Allocator, *mib: int) -> None:
    """Cache segments of these sizes, each free as a whole."""
    for block in [allocator.malloc(size * MIB) for size in mib]:
        allocator.free(block)


@pytest.mark.parametrize(
    "cached, asked, kept, releases",
    [
        ((52, 54, 60), 114, (52,), 0),  # the largest first, and no more than it takes
        ((60, 90), 150, (), 0),
        ((50, 50), 100, (), 0),  # of the limit itself, too
        ((70, 80), 48, (70, 80), 0),  # there is room
        ((50, 148), 40, (148,), 0),  # for a smaller request, too
        ((52, 70, 74), 70, (52, 74), 0),  # of those as large as the request the smallest
        ((40, 60), 140, (), 1),  # all that is oversized is not enough: everything goes
    ],
)
def test_free_segments_past_max_split_size_go_back_before_all_others(cached, asked, kept, releases):
    settings = Settings(max_split_size=50 * MIB, max_non_split_rounding=0)
    allocator = Allocator(capacity=200 * MIB, settings=settings)
    oversized(allocator, *cached)
    allocator.free(allocator.malloc(512))  # a cached segment of 2 MiB
    allocator.malloc(asked * MIB)
    small = 0 if releases else 2
    assert allocator.reserved == (sum(kept) + asked + small) * MIB and allocator.releases == releases
    assert sorted(size // MIB for size, _ in allocator.large.free) == list(kept)


# --- settings, speed ----------------------------------------------------------------------------------


def test_settings_from_the_environment():
    found, unknown = settings_from("expandable_segments:True, max_split_size_mb:128,per_process_memory_fraction:0.5")
    assert found == Settings(expandable_segments=True, max_split_size=128 * MIB, memory_fraction=0.5) and not unknown
    assert settings_from("") == (Settings(), [])
    assert settings_from("roundup_power2_divisions:4")[1] == ["roundup_power2_divisions:4"]
    for word in (
        "max_split_size_mb:many",
        "max_split_size_mb:-3",
        "max_split_size_mb",
        "per_process_memory_fraction:half",
    ):
        assert settings_from(word) == (Settings(), [word])


def test_a_hundred_thousand_events_take_seconds():
    events = [(key, MIB * (1 + key % 37)) for key in range(300)]
    for key in range(300, 50_000):
        events += [(key - 300, -1), (key, MIB * (1 + key * 7 % 37))]
    start = time.process_time()
    demand = replay(events)
    assert time.process_time() - start < 10  # about one second on an idle core
    assert demand.peak_allocated_bytes <= demand.peak_reserved_bytes < 2 * demand.peak_allocated_bytes


def test_streams_share_no_blocks():
    allocator = Allocator()
    allocator.free(allocator.malloc(30 * MIB))
    allocator.free(allocator.malloc(30 * MIB))
    assert allocator.reserved == 30 * MIB
    allocator.free(allocator.malloc(30 * MIB, stream=1))
    assert allocator.reserved == 60 * MIB
    allocator.empty_cache()
    assert allocator.reserved == 0
