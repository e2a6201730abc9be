"""Expandable segments in the allocator's model: pages that are mapped and given back inside one range of addresses."""

from __future__ import annotations

from legroom.estimator.memory.allocator import Allocator
from legroom.estimator.memory.settings import MIB, Settings

EXPANDABLE = Settings(expandable_segments=True)


def test_expandable_pages_are_mapped_as_they_are_needed():
    allocator = Allocator(settings=EXPANDABLE)
    allocator.malloc(30 * MIB)
    assert allocator.reserved == 40 * MIB  # two pages of 20 MiB
    allocator.malloc(10 * MIB)
    assert allocator.reserved == 40 * MIB  # the rest of the second
    allocator.malloc(512)
    assert allocator.reserved == 42 * MIB  # a page of the small pool


def test_an_expandable_segment_grows_behind_a_free_block():
    """Without it 30 MiB would be held for nothing."""
    for settings, reserved in ((EXPANDABLE, 60 * MIB), (Settings(), 90 * MIB)):
        allocator = Allocator(settings=settings)
        allocator.free(allocator.malloc(30 * MIB))
        allocator.malloc(60 * MIB)
        assert allocator.reserved == reserved


def test_expandable_pages_inside_a_free_block_go_back():
    allocator = Allocator(capacity=100 * MIB, settings=EXPANDABLE)
    first, last = allocator.malloc(50 * MIB), allocator.malloc(10 * MIB)
    allocator.free(first)  # pages 0 and 1 are free as a whole, page 2 half
    assert allocator.reserved == 60 * MIB
    allocator.malloc(75 * MIB)  # 60 + 80 do not fit; two pages go back, and 20 + 80 do
    assert (allocator.reserved, allocator.releases) == (100 * MIB, 1)
    allocator.free(last)
    allocator.malloc(20 * MIB)
    assert allocator.reserved == 100 * MIB


def test_holes_are_mapped_again_and_joined():
    allocator = Allocator(settings=EXPANDABLE)
    blocks = [allocator.malloc(size * MIB) for size in (10, 50, 20, 20)]  # 5 pages: 0-10-60-80-100
    allocator.free(blocks[1])
    allocator.empty_cache()
    assert allocator.reserved == 60 * MIB  # pages 1 and 2 went back, the second half of page 0 is free
    assert allocator.malloc(10 * MIB).address == 10 * MIB and allocator.reserved == 60 * MIB
    assert allocator.malloc(40 * MIB).address == 20 * MIB and allocator.reserved == 100 * MIB, "the hole is filled"
    for block in blocks[2:]:
        allocator.free(block)
        allocator.empty_cache()
    assert allocator.reserved == 60 * MIB  # pages 3 and 4 are one range with what is behind them
    assert allocator.malloc(60 * MIB).address == 60 * MIB and allocator.reserved == 120 * MIB


def test_pages_that_go_back_between_two_holes_are_one_hole_with_them():
    allocator = Allocator(settings=EXPANDABLE)
    blocks = [allocator.malloc(20 * MIB) for _ in range(5)]
    for index in (1, 3, 2):
        allocator.free(blocks[index])
        allocator.empty_cache()
    assert allocator.reserved == 40 * MIB
    allocator.capacity = 50 * MIB
    assert allocator.malloc(60 * MIB).address == 20 * MIB and allocator.reserved == 100 * MIB
    assert allocator.capacity == 100 * MIB, "all that was missing, at once"


def test_what_can_grow_is_left_for_those_that_need_it():
    allocator = Allocator(settings=EXPANDABLE)
    first, guard, last = (allocator.malloc(size * MIB) for size in (50, 10, 20))
    allocator.free(first)
    allocator.free(last)  # 20 MiB, before the unmapped end
    assert [size for size, _ in allocator.large.free] == [20 * MIB, 50 * MIB]
    assert allocator.malloc(15 * MIB).address == 0
    allocator.free(guard)
    assert allocator.malloc(70 * MIB).address == 15 * MIB and allocator.reserved == 100 * MIB


def test_the_lowest_address_of_equals_is_taken():
    allocator = Allocator(settings=EXPANDABLE)
    blocks = [allocator.malloc(20 * MIB) for _ in range(5)]
    for block in (blocks[2], blocks[0]):
        allocator.free(block)
    assert allocator.malloc(20 * MIB).address == 0


def test_the_part_of_a_page_behind_those_that_go_back_stays():
    allocator = Allocator(settings=EXPANDABLE)
    _, block, _ = (allocator.malloc(size * MIB) for size in (20, 50, 10))
    allocator.free(block)  # from 20 to 70: pages 1 and 2, and half of page 3
    allocator.empty_cache()
    assert allocator.reserved == 40 * MIB and [*allocator.large.blocks] == [60 * MIB]


def test_what_is_less_than_a_page_stays():
    allocator = Allocator(settings=EXPANDABLE)
    first, _ = allocator.malloc(15 * MIB), allocator.malloc(20 * MIB)
    allocator.free(first)
    allocator.empty_cache()  # of 15 MiB before and 5 behind the block no page is free as a whole
    assert allocator.reserved == 40 * MIB and [size for size, _ in allocator.large.free] == [5 * MIB, 15 * MIB]


def test_expandable_blocks_are_split_at_512_bytes():
    allocator = Allocator(settings=EXPANDABLE)
    allocator.malloc(20 * MIB - 512)
    assert allocator.allocated == 20 * MIB - 512
