"""A model of PyTorch's caching allocator for CUDA: how much memory it reserves for a sequence of requests.

Constants and rules are those of torch 2.13, c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp. Functions
of that file are named in the docstrings. All requests of a pool share its blocks; each stream has pools of its own. Two
things cannot be predicted: the address that CUDA gives a segment (here: above the last one), and the memory that other
programs take.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from legroom.estimator.memory.blocks import Block, Pool, absorb_next, cut, merge_free
from legroom.estimator.memory.settings import MIN_LARGE, ROUND, ROUND_LARGE, SMALL, SMALL_SEGMENT, UNLIMITED, Settings

DEFAULTS = Settings()


class Missing(Exception):
    """The device has so many bytes too few for a request."""

    def __init__(self, missing_bytes: int):
        super().__init__(missing_bytes)
        self.bytes = missing_bytes


class Allocator:
    """malloc(bytes) -> Block and free(block), as CUDA's caching allocator does them. All figures are in bytes.

    capacity: the device's memory without the CUDA context. It is raised where it does not suffice even after all cached
    segments are released, so that it becomes the smallest that would have sufficed (with these releases).
    """

    def __init__(self, capacity: int = UNLIMITED, settings: Settings = DEFAULTS):
        self.capacity = capacity
        self.settings = settings
        self.small = Pool(True, SMALL_SEGMENT)
        self.large = Pool(False, settings.large_segment_size)
        self._pools = {0: (self.small, self.large)}  # of each stream; 0: the default one
        self.allocated = 0
        self.peak_allocated = 0
        self.reserved = 0
        self.peak_reserved = 0
        self.releases = 0  # how often cached segments were released to make room
        self._next_address = 0

    # --- requests ---

    def malloc(self, size: int, stream: int = 0) -> Block:
        """A block of at least `size` bytes for a stream."""
        size = max(ROUND, -(-size // ROUND) * ROUND)
        if stream not in self._pools:
            self._pools[stream] = Pool(True, SMALL_SEGMENT), Pool(False, self.settings.large_segment_size)
        small, large = self._pools[stream]
        pool = small if size <= SMALL else large
        block = self._best_fit(pool, size) or self._new(pool, size)
        if self._splits(block, size):
            cut(block, size)
        block.taken = True
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Return a block to its pool, merged with its free neighbours."""
        self.allocated -= block.size
        block.taken = False
        merge_free(block)

    # --- blocks ---

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """get_free_block: takes the smallest free block that is large enough, the lowest among equals."""
        free = pool.free
        index = bisect_left(free, (size, -1))
        if index == len(free):
            return None
        if self.settings.expandable_segments:
            # A block before unmapped memory counts with the size that it can grow to.
            while index + 1 < len(free) and self._reach(pool, index + 1) < self._reach(pool, index):
                index += 1
        block_size, address = free[index]
        limit = self.settings.max_split_size
        if size < limit <= block_size:  # it is never split, and too large
            return None
        if size >= limit and block_size >= size + self.settings.max_non_split_rounding:
            return None
        block = pool.blocks[address]
        pool.remove(block)
        return block

    def _reach(self, pool: Pool, index: int) -> int:
        """The bytes that a free block can grow to."""
        block = pool.blocks[pool.free[index][1]]
        if block.after is None or block.after.mapped:
            return block.size
        return block.size + block.after.size

    def _splits(self, block: Block, size: int) -> bool:
        """should_split: whether the rest becomes a block of its own."""
        left = block.size - size
        if block.pool.small or self.settings.expandable_segments:
            return left >= ROUND
        return size < self.settings.max_split_size and left > SMALL

    # --- segments ---

    def _new(self, pool: Pool, size: int) -> Block:
        """A block from CUDA, if need be after cached segments are released, and at last with more memory."""
        with contextlib.suppress(Missing):
            return self._map(pool, size)
        if self._release_oversized(pool, size):
            with contextlib.suppress(Missing):
                return self._map(pool, size)
        self._release_all()
        try:
            return self._map(pool, size)
        except Missing as missing:
            self.capacity += missing.bytes
        return self._map(pool, size)

    def _map(self, pool: Pool, size: int) -> Block:
        """A block of memory that was not reserved yet. Raises Missing."""
        if self.settings.expandable_segments:
            return self._grow_segment(pool, size)
        return self._new_segment(pool, size)

    def _take(self, size: int) -> None:
        """Reserve memory of the device. Raises Missing."""
        if self.reserved + size > self.capacity:
            raise Missing(self.reserved + size - self.capacity)
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _segment_size(self, size: int) -> int:
        """get_allocation_size."""
        if size <= SMALL:
            return SMALL_SEGMENT
        if size < MIN_LARGE:
            return self.settings.large_segment_size
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def _new_segment(self, pool: Pool, size: int) -> Block:
        segment = self._segment_size(size)
        self._take(segment)
        block = Block(self._next_address, segment, pool)
        self._next_address += segment
        return block

    def _release_oversized(self, pool: Pool, size: int) -> bool:
        """release_available_cached_blocks: with max_split_size, the free segments that cannot be split come first.

        Returns whether enough was released."""
        limit = self.settings.max_split_size
        oversized = []  # the smallest first
        for block_size, address in pool.free:
            block = pool.blocks[address]
            if block_size >= limit and self._is_segment(block):
                oversized.append(block)
        for block in oversized:
            if block.size >= size:
                self._release(block)
                return True
        released = 0
        for block in reversed(oversized):
            if released >= size:
                break
            self._release(block)
            released += block.size
        return released >= size

    def _is_segment(self, block: Block) -> bool:
        return block.before is None and block.after is None

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        self.reserved -= block.size

    def _release_all(self) -> None:
        """release_cached_blocks: every segment, or mapped page, that is completely free is released."""
        self.releases += 1
        self.empty_cache()

    def empty_cache(self) -> None:
        """Give back what is completely free, as where a program asks for it."""
        for small, large in self._pools.values():
            for block in [*large.blocks.values(), *small.blocks.values()]:
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif self._is_segment(block):
                    self._release(block)

    # --- expandable segments: one range of addresses per pool, whose pages are mapped on demand ---

    def _grow_segment(self, pool: Pool, size: int) -> Block:
        """try_allocate_expandable_block: map pages at the lowest unmapped address with enough room."""
        if pool.space is None:
            pool.space = Block(0, UNLIMITED, pool, mapped=False)
        block = self._lowest_space(pool, size)
        while not block.mapped or block.size < size:
            if block.mapped:
                hole = block.after
                wanted = size - block.size
            else:
                hole = block
                wanted = size
            assert hole is not None, "an unmapped range ends the segment"
            wanted = -(-min(wanted, hole.size) // pool.page) * pool.page  # whole pages
            self._take(wanted)
            if wanted < hole.size:
                cut(hole, wanted)
            if pool.space is hole:
                pool.space = hole.after
            hole.mapped = True
            block = merge_free(hole)
        pool.remove(block)
        return block

    def _lowest_space(self, pool: Pool, size: int) -> Block:
        """find_expandable_block: the first unmapped block that has room for `size`, with the free block before it."""
        start = pool.space
        while start is not None and start.before is not None:
            start = start.before
        while start is not None:
            if not start.mapped:
                first = start
                if start.before is not None and not start.before.taken:
                    first = start.before
                room = 0
                block: Block | None = first
                while block is not None and not block.taken and room < size:
                    room += block.size
                    block = block.after
                if room >= size:
                    return first
            start = start.after
        raise AssertionError("the range of addresses has no end")

    def _unmap(self, block: Block) -> None:
        """unmap_block: release the whole pages inside a free block."""
        pool = block.pool
        begin = -(-block.address // pool.page) * pool.page
        end = (block.address + block.size) // pool.page * pool.page
        if begin >= end:
            return
        pool.remove(block)
        self.reserved -= end - begin
        if begin > block.address:
            head = block
            block = cut(head, begin - head.address)
            pool.remove(block)
            pool.add(head)
        if end < block.address + block.size:
            cut(block, end - block.address)
        block.mapped = False
        if block.before is not None and not block.before.mapped:  # unmapped neighbours become one
            block = block.before
            self._join_unmapped(block)
        if block.after is not None and not block.after.mapped:
            self._join_unmapped(block)

    def _join_unmapped(self, block: Block) -> None:
        """Extend an unmapped range by the one after it."""
        if block.pool.space is block.after:
            block.pool.space = block
        absorb_next(block)


# --- a sequence of requests ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Demand:
    """What a sequence of requests needs. missing_bytes: by which the capacity is too small; 0 if it suffices.

    releases: how often cached segments were released. capacity_bytes: the capacity that was given.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    missing_bytes: int
    releases: int
    capacity_bytes: int


Request = tuple[int, int] | tuple[int, int, int]  # (key, bytes), or (key, bytes, stream); see `request`
EMPTY_CACHE = (-1, 0)  # a request to give cached segments back, as torch.cuda.empty_cache does


def request(allocator: Allocator, held: dict[int, Block], key: int, size: int, stream: int = 0) -> None:
    """One request: (key, bytes) allocates, (key, -1) frees the block of that key. held: the blocks by key."""
    if size > 0:
        held[key] = allocator.malloc(size, stream)
    elif size < 0 and key in held:  # an empty tensor has no block
        allocator.free(held.pop(key))
    elif (key, size) == EMPTY_CACHE:
        allocator.empty_cache()


def replay(events: Iterable[Request], capacity: int = UNLIMITED, settings: Settings = DEFAULTS) -> Demand:
    """Replay requests in order (see `request`).

    Beyond the capacity it continues as if the device were larger, so that the figures are those of all requests.
    """
    allocator = Allocator(capacity, settings)
    held: dict[int, Block] = {}
    for event in events:
        request(allocator, held, *event)
    return Demand(
        peak_allocated_bytes=allocator.peak_allocated,
        peak_reserved_bytes=allocator.peak_reserved,
        missing_bytes=allocator.capacity - capacity,
        releases=allocator.releases,
        capacity_bytes=capacity,
    )
