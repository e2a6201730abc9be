"""A model of PyTorch's caching allocator for CUDA: what a sequence of requests makes it reserve.

Constants and rules are those of torch 2.13, c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp.
One stream, as a training step has: all requests of a pool compete for the same blocks. Two things are not to be
known beforehand: where CUDA puts a segment (here: each above the last), and what other programs take.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from recipes.foresight.memory.settings import MIN_LARGE, ROUND, ROUND_LARGE, SMALL, SMALL_SEGMENT, UNLIMITED, Settings


class OutOfMemory(Exception):
    """A request that the device has no room for, also after all cached segments went back. missing_bytes: how much."""

    def __init__(self, missing_bytes: int):
        super().__init__(f"{missing_bytes} bytes are missing")
        self.missing_bytes = missing_bytes


class Block:
    """A piece of a segment. `before` and `after`: its neighbours there. Unmapped: address space without memory."""

    __slots__ = ("address", "size", "pool", "before", "after", "taken", "mapped")

    def __init__(self, address: int, size: int, pool: Pool, mapped: bool = True):
        self.address, self.size, self.pool, self.mapped = address, size, pool, mapped
        self.before: Block | None = None
        self.after: Block | None = None
        self.taken = False


class Pool:
    """The free blocks of the small or of the large pool, by size and then by address."""

    def __init__(self, small: bool, page: int):
        self.small, self.page = small, page
        self.free: list[tuple[int, int]] = []
        self.blocks: dict[int, Block] = {}  # address -> free block
        self.space: Block | None = None  # the unmapped end of the expandable segment

    def add(self, block: Block) -> None:
        insort(self.free, (block.size, block.address))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]
        del self.blocks[block.address]


class Allocator:
    """malloc(bytes) -> Block and free(block), as CUDA's caching allocator would do them. Figures are in bytes.

    capacity: what CUDA can give, after its context. grow: raise the capacity where it does not suffice instead of
    raising OutOfMemory, so that `capacity` becomes the least that would have done (on this path).
    """

    def __init__(self, capacity: int = UNLIMITED, settings: Settings = Settings(), grow: bool = False):
        self.capacity, self.settings, self.grow = capacity, settings, grow
        self.small = Pool(True, SMALL_SEGMENT)
        self.large = Pool(False, settings.large_segment_size)
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.releases = 0  # how often cached segments had to go back to make room
        self._next_address = 0

    # --- requests ---

    def malloc(self, size: int) -> Block:
        """A block of at least `size` bytes. Raises OutOfMemory."""
        size = max(ROUND, -(-size // ROUND) * ROUND)
        pool = self.small if size <= SMALL else self.large
        block = self._best_fit(pool, size)
        if block is None:
            block = self._new(pool, size)
        if self._splits(block, size):
            self._cut(block, size)
        block.taken = True
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Give a block back to its pool, one with its free neighbours."""
        self.allocated -= block.size
        block.taken = False
        self._settle(block)

    # --- blocks ---

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """The smallest free block that holds it, out of its pool; the lowest address among equals."""
        free, limit = pool.free, self.settings.max_split_size
        at = bisect_left(free, (size, -1))
        if at == len(free):
            return None
        if self.settings.expandable_segments:
            # A block before unmapped space counts with all that it can grow to (get_free_block).
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
        """should_split: what is left over is worth a block of its own."""
        left = block.size - size
        if block.pool.small or self.settings.expandable_segments:
            return left >= ROUND
        return size < self.settings.max_split_size and left > SMALL

    def _cut(self, block: Block, size: int) -> None:
        """Shorten a block; the rest is a free block behind it."""
        rest = Block(block.address + size, block.size - size, block.pool, block.mapped)
        block.size = size
        rest.before, rest.after, block.after = block, block.after, rest
        if rest.after is not None:
            rest.after.before = rest
        if rest.mapped:
            block.pool.add(rest)

    def _settle(self, block: Block) -> Block:
        """Put a free, mapped block into its pool, merged with free neighbours."""
        before, after = block.before, block.after
        if after is not None and after.mapped and not after.taken:
            block.pool.remove(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        if before is not None and before.mapped and not before.taken:
            block.pool.remove(before)
            before.size += block.size
            before.after = block.after
            if before.after is not None:
                before.after.before = before
            block = before
        block.pool.add(block)
        return block

    # --- segments ---

    def _new(self, pool: Pool, size: int) -> Block:
        """A block from CUDA: at once, or after cached segments went back to it. Raises OutOfMemory."""
        map_new = self._grow_segment if self.settings.expandable_segments else self._new_segment
        for attempt in range(3):
            missing = map_new(pool, size)
            if isinstance(missing, Block):
                return missing
            if attempt == 0:
                limited = self.settings.max_split_size != UNLIMITED
                if not (limited and self._release_oversized(size)):
                    self._release_all()
            elif attempt == 1:
                self._release_all()
        if not self.grow:
            raise OutOfMemory(missing)
        self.capacity += missing
        return map_new(pool, size)

    def _take(self, size: int) -> int:
        """Reserve memory of the device: 0, or how much is missing for it."""
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

    def _release_oversized(self, size: int) -> bool:
        """release_available_cached_blocks: with max_split_size, first the free segments that cannot be split."""
        limit, released = max(size, self.settings.max_split_size), 0
        whole = [block for block in map(self.large.blocks.get, [a for _, a in self.large.free]) if self._whole(block)]
        exact = next((block for block in whole if block.size >= limit), None)
        for block in [exact] if exact else [b for b in reversed(whole) if b.size >= self.settings.max_split_size]:
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

    def _release_all(self) -> None:
        """release_cached_blocks: every segment, or page, that is wholly free goes back to CUDA."""
        self.releases += 1
        for pool in (self.large, self.small):
            for block in list(pool.blocks.values()):
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif self._whole(block):
                    self._release(block)

    # --- expandable segments: one range of addresses a pool, of which pages are mapped as they are needed ---

    def _grow_segment(self, pool: Pool, size: int) -> Block | int:
        """try_allocate_expandable_block: map pages at the lowest unmapped place that has room for it."""
        if pool.space is None:
            pool.space = Block(0, UNLIMITED, pool, mapped=False)
        block = self._lowest_place(pool, size)
        while not block.mapped or block.size < size:
            hole = block if not block.mapped else block.after
            wanted = size if hole is block else size - block.size
            wanted = -(-min(wanted, hole.size) // pool.page) * pool.page
            missing = self._take(wanted)
            if missing:
                return missing
            if wanted < hole.size:
                self._cut(hole, wanted)
            if pool.space is hole:
                pool.space = hole.after
            hole.mapped = True
            block = self._settle(hole)
        pool.remove(block)
        return block

    def _lowest_place(self, pool: Pool, size: int) -> Block:
        """find_expandable_block: the first unmapped place, with a free block before it, that holds `size`."""
        start = pool.space
        while start.before is not None:
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
        """unmap_block: give back the whole pages inside a free block."""
        page = block.pool.page
        first, last = -(-block.address // page) * page, (block.address + block.size) // page * page
        if first >= last:
            return
        pool = block.pool
        pool.remove(block)
        self.reserved -= last - first
        if first > block.address:
            head, block = block, None
            self._cut(head, first - head.address)
            block = head.after
            pool.remove(block)
            pool.add(head)
        if last < block.address + block.size:
            self._cut(block, last - block.address)
        block.mapped = False
        for near in (block.before, block.after):  # unmapped neighbours become one
            if near is not None and not near.mapped:
                low, high = sorted((near, block), key=lambda b: b.address)
                low.size += high.size
                low.after = high.after
                if low.after is not None:
                    low.after.before = low
                if pool.space is high:
                    pool.space = low
                block = low


# --- a whole run ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Demand:
    """What a run asks of the device. missing_bytes: how much the capacity would have to grow, 0 where it fits.

    capacity_bytes: what the settings leave of it.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    missing_bytes: int
    releases: int
    capacity_bytes: int


def replay(events: Iterable[tuple[int, int]], capacity: int = UNLIMITED, settings: Settings = Settings()) -> Demand:
    """Play requests in their order: (key, bytes) asks, (key, -1) gives back what that key holds.

    Past the capacity it goes on as if the device were larger, so that the figures are those of the whole run.
    """
    allocator, held = Allocator(capacity, settings, grow=True), {}
    start = allocator.capacity
    for key, size in events:
        if size > 0:
            held[key] = allocator.malloc(size)
        elif size < 0 and key in held:  # torch asks nothing for an empty tensor, and gives nothing back
            allocator.free(held.pop(key))
    return Demand(
        allocator.peak_allocated, allocator.peak_reserved, allocator.capacity - start, allocator.releases, start
    )
