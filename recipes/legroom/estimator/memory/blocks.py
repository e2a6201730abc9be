"""Blocks and pools of the caching allocator's model: pieces of segments, linked to their neighbours."""

from __future__ import annotations

from bisect import bisect_left, insort


class Block:
    """A piece of a segment. before, after: its neighbours there. Not mapped: a range of addresses without memory."""

    __slots__ = ("address", "size", "pool", "before", "after", "taken", "mapped")

    def __init__(self, address: int, size: int, pool: Pool, mapped: bool = True):
        self.address = address
        self.size = size
        self.pool = pool
        self.mapped = mapped
        self.before: Block | None = None
        self.after: Block | None = None
        self.taken = False

    @property
    def is_free(self) -> bool:
        """Whether a request could have it: there is memory, and it is not taken."""
        return self.mapped and not self.taken


class Pool:
    """The free blocks for small or for large requests, by size and then by address. page: bytes mapped at once."""

    def __init__(self, small: bool, page: int):
        self.small = small
        self.page = page
        self.free: list[tuple[int, int]] = []  # (size, address), sorted
        self.blocks: dict[int, Block] = {}  # address -> free block
        self.space: Block | None = None  # the unmapped end of the expandable segment

    def add(self, block: Block) -> None:
        insort(self.free, (block.size, block.address))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]
        del self.blocks[block.address]


def cut(block: Block, size: int) -> Block:
    """Shorten a block to `size`. Returns the rest, a new block after it, which is free if it is mapped."""
    rest = Block(block.address + size, block.size - size, block.pool, block.mapped)
    block.size = size
    rest.before = block
    rest.after = block.after
    block.after = rest
    if rest.after is not None:
        rest.after.before = rest
    if rest.mapped:
        block.pool.add(rest)
    return rest


def merge_free(block: Block) -> Block:
    """Add a free, mapped block to its pool, merged with its free neighbours. Returns the merged block."""
    if block.after is not None and block.after.is_free:
        block.pool.remove(block.after)
        absorb_next(block)
    before = block.before
    if before is not None and before.is_free:
        block.pool.remove(before)
        absorb_next(before)
        block = before
    block.pool.add(block)
    return block


def absorb_next(block: Block) -> None:
    """Extend a block by the one after it, which is then gone."""
    gone = block.after
    assert gone is not None
    block.size += gone.size
    block.after = gone.after
    if block.after is not None:
        block.after.before = block
