"""The heap of glibc's malloc, as far as it decides how much memory a CPU's step touches for the first time.

Touching new memory costs page faults, which on a CPU take as long as the arithmetic on it. malloc gives memory back in
two ways (malloc.c of glibc 2.26 and later): a chunk of at least the mmap threshold is mapped and unmapped by itself,
and the free end of the heap is cut off when it reaches the trim threshold. Both grow with the largest mapped chunk
that was freed.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from legroom.units import MIB

LEAST_THRESHOLD, MOST_THRESHOLD = 128 * 2**10, 32 * MIB  # DEFAULT_MMAP_THRESHOLD_MIN and _MAX
TOP_PAD = 128 * 2**10  # what is asked for, and kept, beyond what is needed
HEADER, ALIGNMENT, PAGE = 16, 64, 4096  # of a chunk; torch aligns to 64 bytes


class HostHeap:
    """Serves requests in order. fresh_bytes: heap memory that was touched for the first time since it was obtained.

    Chunks that are mapped by themselves because they exceed MOST_THRESHOLD are not counted: the seconds of the
    operations that make them contain their page faults.
    """

    def __init__(self) -> None:
        self.fresh_bytes = 0
        self._threshold = LEAST_THRESHOLD
        self._end = self._top = self._touched = 0  # of the heap; where its free end begins; below it all is touched
        self._free: list[tuple[int, int]] = []  # (bytes, address), ascending: the best fit, then the lowest address
        self._free_at: dict[int, int] = {}  # address -> bytes
        self._free_until: dict[int, int] = {}  # the address behind -> address
        self._used: dict[int, tuple[int, int]] = {}  # key -> (address, bytes); address -1: mapped

    def replay(self, events: Iterable[tuple[int, int]]) -> None:
        """events: (key, bytes), and (key, -1) to free, as of `OpTrace.allocator_events`."""
        for key, size in events:
            if size >= 0:
                self._used[key] = self._allocate(size)
            else:
                self._release(*self._used.pop(key))

    def _allocate(self, size: int) -> tuple[int, int]:
        needed = -(-(size + ALIGNMENT + 2 * HEADER) // HEADER) * HEADER
        if needed >= self._threshold:
            needed = -(-(needed + HEADER) // PAGE) * PAGE
            if needed <= MOST_THRESHOLD:
                self.fresh_bytes += needed
            return -1, needed
        found = bisect.bisect_left(self._free, (needed, 0))
        if found < len(self._free):
            whole, address = self._free[found]
            self._take(address, whole)
            if whole - needed > 2 * HEADER:
                self._put(address + needed, whole - needed)
                return address, needed
            return address, whole
        address, self._top = self._top, self._top + needed
        if self._top > self._end:
            self._end = -(-(self._top + TOP_PAD) // PAGE) * PAGE
        self.fresh_bytes += max(0, self._top - max(address, self._touched))
        self._touched = max(self._touched, self._top)
        return address, needed

    def _release(self, address: int, size: int) -> None:
        if address < 0:
            if self._threshold < size <= MOST_THRESHOLD:
                self._threshold = size
            return
        if address + size in self._free_at:
            behind = self._free_at[address + size]
            self._take(address + size, behind)
            size += behind
        if address in self._free_until:
            before = self._free_until[address]
            size += self._free_at[before]
            self._take(before, self._free_at[before])
            address = before
        if address + size < self._top:
            self._put(address, size)
            return
        self._top = address
        if self._end - self._top >= 2 * self._threshold:
            self._end = min(self._end, -(-(self._top + TOP_PAD) // PAGE) * PAGE)
            self._touched = min(self._touched, self._end)

    def _put(self, address: int, size: int) -> None:
        bisect.insort(self._free, (size, address))
        self._free_at[address], self._free_until[address + size] = size, address

    def _take(self, address: int, size: int) -> None:
        del self._free[bisect.bisect_left(self._free, (size, address))]
        del self._free_at[address], self._free_until[address + size]
