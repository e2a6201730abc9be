"""Long sequences of requests to the allocator's model under each of its settings, as kept values."""

from __future__ import annotations

import random

from legroom.foresight.memory.allocator import EMPTY_CACHE, Allocator, request
from legroom.foresight.memory.settings import MIB

SIZES = (
    1,
    512,
    513,
    100_000,
    MIB - 1,
    MIB,
    MIB + 1,
    3 * MIB,
    10 * MIB - 512,
    10 * MIB,
    11 * MIB,
    25 * MIB,
    30 * MIB,
    47 * MIB,
)


def requests(seed: int, count: int = 220) -> list[tuple[int, int]]:
    """Requests of all sizes, most of which are freed again; now and then the cache is emptied."""
    chance, alive, found = random.Random(seed), [], []
    for number in range(count):
        if alive and chance.random() < 0.45:
            found.append((alive.pop(chance.randrange(len(alive))), -1))
        else:
            alive.append(number)
            found.append((number, chance.choice(SIZES) + 512 * chance.randrange(3)))
        if number % 70 == 69:
            found.append(EMPTY_CACHE)
    return found


def test_requests_of_nothing_and_of_unknown_blocks_change_nothing():
    allocator, held = Allocator(), {}
    request(allocator, held, 0, 0)
    request(allocator, held, 7, -1)
    request(allocator, held, -1, 0)
    assert not held and allocator.reserved == 0
    request(allocator, held, 3, 1)
    request(allocator, held, -1, 5)  # a key like that of EMPTY_CACHE
    request(allocator, held, 3, -1)
    assert list(held) == [-1] and allocator.reserved == 2 * MIB and allocator.allocated == 512
