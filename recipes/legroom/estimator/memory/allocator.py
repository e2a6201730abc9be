"""A model of PyTorch's caching allocator for CUDA: how much memory it reserves for a sequence of requests.

Constants and rules are those of torch 2.13, c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp. Functions
of that file are named in the docstrings. All requests of a pool share its blocks; each stream has pools of its own. Two
things cannot be predicted: the address that CUDA gives a segment (here: above the last one), and the memory that other
programs take.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from legroom.estimator.memory.blocks import Block, Pool, absorb_next, cut, merge_free
from legroom.estimator.memory.settings import MIN_LARGE, ROUND, ROUND_LARGE, SMALL, SMALL_SEGMENT, UNLIMITED, Settings

DEFAULTS = Settings()


class Allocator:
    """malloc(bytes) -> Block and free(block), as CUDA's caching allocator does them. All figures are in bytes.

    capacity: the device's memory without the CUDA context. It is raised where it does not suffice even after all cached
    segments are released, so that it becomes the smallest that would have sufficed (with these releases).
    """

    def __init__(self, capacity: int = UNLIMITED, settings: Settings = DEFAULTS):
        self.capacity, self.settings = capacity, settings
        self.small = Pool(True, SMALL_SEGMENT)
        self.large = Pool(False, settings.large_segment_size)
        self._pools = {0: (self.small, self.large)}  # of each stream; 0: the default one
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
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
        free, limit = pool.free, self.settings.max_split_size
        at = bisect_left(free, (size, -1))
        if at == len(free):
            return None
        if self.settings.expandable_segments:
            # A block before unmapped memory counts with the size that it can grow to.
            while at + 1 < len(free) and self._reach(pool, at + 1) < self._reach(pool, at):
                at += 1
        found = free[at][0]
        if size < limit <= found or (size >= limit and found >= size + self.settings.max_non_split_rounding):
            return None
        block = pool.blocks[free[at][1]]
        pool.remove(block)
        return block

    def _reach(self, pool: Pool, at: int) -> int:
        block = pool.blocks[pool.free[at][1]]
        return block.size + (block.after.size if block.after is not None and not block.after.mapped else 0)

    def _splits(self, block: Block, size: int) -> bool:
        """should_split: whether the rest becomes a block of its own."""
        left = block.size - size
        if block.pool.small or self.settings.expandable_segments:
            return left >= ROUND
        return size < self.settings.max_split_size and left > SMALL

    # --- segments ---

    def _new(self, pool: Pool, size: int) -> Block:
        """A block from CUDA, if need be after cached segments are released, and at last with more memory."""
        map_new = self._grow_segment if self.settings.expandable_segments else self._new_segment
        found: Block | int = map_new(pool, size)
        for make_room in (self._release_oversized, self._release_all):
            if not isinstance(found, Block) and make_room(pool, size):
                found = map_new(pool, size)
        if isinstance(found, Block):
            return found
        self.capacity += found
        block = map_new(pool, size)
        assert isinstance(block, Block), "the capacity was raised by what was missing"
        return block

    def _take(self, size: int) -> int:
        """Reserve memory of the device. Returns 0, or the bytes that are missing."""
        if self.reserved + size > self.capacity:
            return self.reserved + size - self.capacity
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return 0

    def _segment_size(self, size: int) -> int:
        """get_allocation_size."""
        if size <= SMALL:
            return SMALL_SEGMENT
        if size < MIN_LARGE:
            return self.settings.large_segment_size
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def _new_segment(self, pool: Pool, size: int) -> Block | int:
        segment = self._segment_size(size)
        missing = self._take(segment)
        if missing:
            return missing
        block = Block(self._next_address, segment, pool)
        self._next_address += segment
        return block

    def _release_oversized(self, pool: Pool, size: int) -> bool:
        """release_available_cached_blocks: with max_split_size, the free segments that cannot be split come first."""
        limit, released = max(size, self.settings.max_split_size), 0
        free = [pool.blocks[address] for _, address in pool.free]
        whole = [block for block in free if self._whole(block)]
        exact = next((block for block in whole if block.size >= limit), None)
        for block in (
            [exact] if exact is not None else [b for b in reversed(whole) if b.size >= self.settings.max_split_size]
        ):
            if released >= size:
                break
            self._release(block)
            released += block.size
        return released >= size

    def _whole(self, block: Block) -> bool:
        return block.before is None and block.after is None

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        self.reserved -= block.size

    def _release_all(self, _: Pool, __: int) -> bool:
        """release_cached_blocks: every segment, or mapped page, that is completely free is released."""
        self.releases += 1
        self.empty_cache()
        return True

    def empty_cache(self) -> None:
        """Give back what is completely free, as where a program asks for it."""
        for pool in [pool for small, large in self._pools.values() for pool in (large, small)]:
            for block in list(pool.blocks.values()):
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif self._whole(block):
                    self._release(block)

    # --- expandable segments: one range of addresses per pool, whose pages are mapped on demand ---

    def _grow_segment(self, pool: Pool, size: int) -> Block | int:
        """try_allocate_expandable_block: map pages at the lowest unmapped address with enough room."""
        if pool.space is None:
            pool.space = Block(0, UNLIMITED, pool, mapped=False)
        block = self._lowest_space(pool, size)
        while not block.mapped or block.size < size:
            hole = block if not block.mapped else block.after
            assert hole is not None, "an unmapped range ends the segment"
            wanted = size if hole is block else size - block.size
            wanted = -(-min(wanted, hole.size) // pool.page) * pool.page
            missing = self._take(wanted)
            if missing:
                return missing
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
                first = start.before if start.before is not None and not start.before.taken else start
                room, block = 0, first
                while block is not None and not block.taken and room < size:
                    room += block.size
                    block = block.after
                if room >= size:
                    return first
            start = start.after
        raise AssertionError("the range of addresses has no end")

    def _unmap(self, block: Block) -> None:
        """unmap_block: release the whole pages inside a free block."""
        page = block.pool.page
        first, last = -(-block.address // page) * page, (block.address + block.size) // page * page
        if first >= last:
            return
        pool = block.pool
        pool.remove(block)
        self.reserved -= last - first
        if first > block.address:
            head, block = block, cut(block, first - block.address)
            pool.remove(block)
            pool.add(head)
        if last < block.address + block.size:
            cut(block, last - block.address)
        block.mapped = False
        for near in (block.before, block.after):  # unmapped neighbours become one
            if near is not None and not near.mapped:
                low, high = sorted((near, block), key=lambda b: b.address)
                absorb_next(low)
                if pool.space is high:
                    pool.space = low
                block = low


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
    allocator, held = Allocator(capacity, settings), {}
    start = allocator.capacity
    for event in events:
        request(allocator, held, *event)
    return Demand(
        allocator.peak_allocated, allocator.peak_reserved, allocator.capacity - start, allocator.releases, start
    )
