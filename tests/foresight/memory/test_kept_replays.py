"""Long sequences of requests to the allocator's model under each of its settings, as kept values."""

from __future__ import annotations

import itertools
import random

from support.known_values import known

from legroom.foresight.memory.allocator import EMPTY_CACHE, Allocator, replay, request
from legroom.foresight.memory.settings import MIB, Settings, settings_from

SETTINGS = {
    "defaults": Settings(),
    "expandable": Settings(expandable_segments=True),
    "max_split_size": Settings(max_split_size=24 * MIB),
    "rounding": Settings(max_split_size=24 * MIB, max_non_split_rounding=4 * MIB),
    "segments": Settings(large_segment_size=32 * MIB),
    "expandable segments": Settings(expandable_segments=True, large_segment_size=32 * MIB),
}
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


def test_what_sequences_reserve_under_each_setting(data_regression):
    """Of each: peaks, what is missing, and releases; without a limit, with a tight one and with too small a one."""
    found = {}
    for name, seed in itertools.product(SETTINGS, range(4)):
        events = requests(seed)
        free = replay(events, settings=SETTINGS[name])
        tight = replay(events, free.peak_reserved_bytes - 8 * MIB, SETTINGS[name])
        small = replay(events, free.peak_reserved_bytes * 3 // 4, SETTINGS[name])
        found[f"{name} {seed}"] = [
            " ".join(map(str, (one.peak_allocated_bytes, one.peak_reserved_bytes, one.missing_bytes, one.releases)))
            for one in (free, tight, small)
        ]
        assert small.capacity_bytes == free.peak_reserved_bytes * 3 // 4
    data_regression.check(found)


def test_where_blocks_lie_after_a_sequence(data_regression):
    """Addresses, sizes and segments of what is free and of what is taken, and what emptying the cache leaves."""
    found = {}
    for name, settings in SETTINGS.items():
        allocator, held = Allocator(600 * MIB, settings), {}
        for event in requests(5, 120):
            request(allocator, held, *event)
        assert allocator.capacity == 600 * MIB, "nothing was missing"
        found[name] = {
            "taken": [f"{key} at {block.address} of {block.size}" for key, block in sorted(held.items())],
            "free": [f"{pool.small} {pool.free}" for pool in (allocator.small, allocator.large)],
            "figures": [allocator.allocated, allocator.reserved, allocator.peak_allocated, allocator.peak_reserved],
        }
        for block in held.values():
            allocator.free(block)
        allocator.empty_cache()
        assert (allocator.allocated, allocator.reserved) == (0, 0)
    data_regression.check(known(found))


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


def test_what_a_variable_says_of_the_allocator(data_regression):
    texts = [
        "", " , ", "expandable_segments:True", "expandable_segments:true", "expandable_segments",
        "max_split_size_mb:128", "max_split_size_mb:many", "max_non_split_rounding_mb:30, large_segment_size_mb:64",
        "per_process_memory_fraction:0.5", "per_process_memory_fraction:.25", "per_process_memory_fraction:1",
        "per_process_memory_fraction:1.0", "per_process_memory_fraction:2", "per_process_memory_fraction:0.5x",
        "backend:native", "backend:cudaMallocAsync", "pinned_use_cuda_host_register:True",
        "strange,max_split_size_mb:1",
        "release_lock_on_cudamalloc:True", "throw_on_cudamalloc_oom:True", "garbage_collection_threshold:0.8",
    ]  # fmt: skip
    found = {}
    for text in texts:
        settings, unknown = settings_from(text)
        changed = {key: value for key, value in vars(settings).items() if value != getattr(Settings(), key)}
        found[text] = {"changed": changed, "unknown": unknown}
    data_regression.check(known(found))
    plain = Settings()
    assert [plain.expandable_segments, plain.memory_fraction, plain.max_non_split_rounding] == [False, 1.0, 20 * MIB]
