"""glibc's malloc as tensors on a CPU meet it: which of the memory that they free stays resident. Imports no torch.

Large requests get a mapping of their own, which goes back to the system when it is freed. Smaller ones lie in a heap
that grows and shrinks at its end alone, so what is freed below its end stays resident. The border between the two moves
up to 32 MiB as mappings are freed (malloc/malloc.c: sysmalloc, _int_free, systrim; mallopt(3), M_MMAP_THRESHOLD).

torch asks for aligned blocks, so a freed block serves another of its size only together with the bytes before and
behind it that the alignment had left over. Some of these go to small objects meanwhile, and then it does not: measured
heaps are a third larger than what they hold.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

KIB, MIB = 2**10, 2**20
FIRST_THRESHOLD = 128 * KIB  # M_MMAP_THRESHOLD: a request of so many bytes is mapped
LARGEST_THRESHOLD = 32 * MIB  # DEFAULT_MMAP_THRESHOLD_MAX
TOP_PAD = 128 * KIB  # M_TOP_PAD: by which the heap grows beyond a request, and what is left when it shrinks
ALIGNMENT = 64  # of what torch asks for
HEADER = 8  # of a block
LEAST = 32  # the smallest block
# Of the bytes that alignment leaves over, one piece in so many is taken by a small object. Fitted to GPT-2's step, of
# which mallinfo2 says that 355 of the heap's 943 MiB are free (docs/results/host_memory.md).
TAKEN_ONE_IN = 8
TAKEN_FOR = 1500  # requests, until the small object is freed
PAGE = 4 * KIB


@dataclass
class HostHeap:
    """Resident bytes of what is allocated and freed by key. peak: the most of them so far; most_held: the most that was
    asked for and not freed."""

    resident: int = 0
    peak: int = 0
    most_held: int = 0
    _threshold: int = FIRST_THRESHOLD
    _end: int = 0  # of what the system has given to the heap
    _top: int = 0  # where the last block of the heap ends; from here to the end nothing is used
    _touched: int = 0  # how far the heap is resident
    _mapped: dict[Hashable, int] = field(default_factory=dict)  # key -> bytes
    _used: dict[Hashable, tuple[int, int]] = field(default_factory=dict)  # key -> (address, bytes)
    _free_by_size: list[tuple[int, int]] = field(default_factory=list)  # (bytes, address), ascending
    _free_from: dict[int, int] = field(default_factory=dict)  # address -> bytes
    _free_to: dict[int, int] = field(default_factory=dict)  # end -> address
    _pieces: int = 0  # that alignment has left over so far
    _requests: int = 0
    _taken: deque[tuple[int, int]] = field(default_factory=deque)  # (number of a request, address), by small objects

    def allocate(self, key: Hashable, size_bytes: int) -> None:
        """Allocate an aligned block and write to all of it, as `_int_memalign` does: it asks for a larger block, and
        frees what it does not need before and behind the aligned one."""
        self._requests += 1
        while self._taken and self._taken[0][0] <= self._requests:
            _, address = self._taken.popleft()
            self.free((address, "taken"))
        needed = _rounded(size_bytes + HEADER, 16)
        asked = _rounded(size_bytes + ALIGNMENT + LEAST + HEADER, 16)
        index = bisect.bisect_left(self._free_by_size, (asked, 0))
        if index < len(self._free_by_size):
            free_bytes, address = self._free_by_size[index]
            self._take_free(address)
            self._place(key, address, free_bytes, needed)
            return
        if self._top + asked > self._end and asked >= self._threshold:
            mapped = _rounded(asked, PAGE)
            self._mapped[key] = mapped
            self._add(mapped)
            return
        if self._top + asked > self._end:
            self._end = _rounded(self._top + asked + TOP_PAD, PAGE)
        start = self._top
        self._top = self._place(key, start, asked, needed)
        self._touch(self._top)

    def _place(self, key: Hashable, start: int, room: int, needed: int) -> int:
        """Use an aligned part of a free range, and free the rest of it. Returns where the part ends; behind the heap's
        last block the rest is its top."""
        lead = -(start + 2 * HEADER) % ALIGNMENT
        if 0 < lead < LEAST:
            lead += ALIGNMENT
        if lead and not self._takes(start, lead):
            self._put_free(start, lead)
        rest = room - lead - needed
        if rest < LEAST:
            needed += rest
            rest = 0
        address = start + lead
        self._used[key] = (address, needed)
        end = address + needed
        if not rest:
            return end
        is_last = start == self._top
        if rest <= ALIGNMENT + LEAST and self._takes(end, rest):
            return end + rest
        if not is_last:
            self._put_free(end, rest)
        return end

    def _takes(self, address: int, size: int) -> bool:
        """Whether a small object takes a piece that alignment leaves over, for a while."""
        self._pieces += 1
        if self._pieces % TAKEN_ONE_IN:
            return False
        self._taken.append((self._requests + TAKEN_FOR, address))
        self._used[address, "taken"] = (address, size)
        return True

    def _touch(self, end: int) -> None:
        if end > self._touched:
            self._add(end - self._touched)
            self._touched = end

    def free(self, key: Hashable) -> None:
        """Free a block; a key that is not known is passed over."""
        mapped = self._mapped.pop(key, None)
        if mapped is not None:
            self._add(-mapped)
            if self._threshold < mapped <= LARGEST_THRESHOLD:
                self._threshold = mapped
            return
        block = self._used.pop(key, None)
        if block is None:
            return
        address, size = block
        before = self._free_to.get(address)
        if before is not None:
            size += address - before
            self._take_free(before)
            address = before
        after = self._free_from.get(address + size)
        if after is not None:
            self._take_free(address + size)
            size += after
        if address + size == self._top:
            self._top = address
            self._trim()
        else:
            self._put_free(address, size)

    def _trim(self) -> None:
        """Give back the end of the heap where it has grown large. M_TRIM_THRESHOLD is twice the other threshold."""
        if self._end - self._top < 2 * self._threshold:
            return
        self._end = _rounded(self._top + TOP_PAD, PAGE)
        if self._touched > self._end:
            self._add(self._end - self._touched)
            self._touched = self._end

    def _add(self, size_bytes: int) -> None:
        self.resident += size_bytes
        self.peak = max(self.peak, self.resident)

    def _put_free(self, address: int, size: int) -> None:
        bisect.insort(self._free_by_size, (size, address))
        self._free_from[address] = size
        self._free_to[address + size] = address

    def _take_free(self, address: int) -> None:
        size = self._free_from.pop(address)
        del self._free_to[address + size]
        del self._free_by_size[bisect.bisect_left(self._free_by_size, (size, address))]


def replay(requests: Iterable[tuple[int, ...]]) -> HostHeap:
    """The heap after requests as `OpTrace.allocator_events` has them: (key, bytes), and (key, -1) to free."""
    heap = HostHeap()
    sizes: dict[int, int] = {}
    held = 0
    for key, size, *_ in requests:
        if size < 0:
            heap.free(key)
            held -= sizes.pop(key, 0)
            continue
        heap.allocate(key, size)
        sizes[key] = size
        held += size
        heap.most_held = max(heap.most_held, held)
    return heap


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
