"""What PYTORCH_ALLOC_CONF may say of CUDA's caching allocator, and the allocator's own constants.

Those are of torch 2.13, c10/core/AllocatorConfig.h.
"""

import os
import re
import sys
from dataclasses import dataclass
from typing import Any

from legroom.units import MIB

ROUND = 512  # kMinBlockSize: every request is rounded up to a multiple
SMALL = MIB  # kSmallSize: the largest request that the small pool serves
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT = 20 * MIB  # large_segment_size: the segment for a large request under MIN_LARGE
MIN_LARGE = 10 * MIB  # kMinLargeAlloc
ROUND_LARGE = 2 * MIB  # kRoundLarge: a segment of its own is rounded up to a multiple
UNLIMITED = sys.maxsize
FRACTION = re.compile(r"0?\.\d+|[01](\.0*)?")
SIZES = ("max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb")
# What changes no memory of the device begins so.
WITHOUT_EFFECT = ("pinned_", "release_lock_on_cudamalloc", "backend:native", "throw_on_cudamalloc_oom")


@dataclass(frozen=True)
class Settings:
    """What PYTORCH_ALLOC_CONF may say that changes memory. Sizes in bytes; UNLIMITED: no such limit."""

    expandable_segments: bool = False
    max_split_size: int = UNLIMITED  # larger blocks are never split, and serve only requests as large
    max_non_split_rounding: int = LARGE_SEGMENT  # how much too large such a block may be
    large_segment_size: int = LARGE_SEGMENT
    memory_fraction: float = 1.0  # of the whole device, for this process: its allocator's capacity, whoever makes it


def settings_from(text: str) -> tuple[Settings, list[str]]:
    """(settings, what it does not know) of a PYTORCH_ALLOC_CONF: `key:value,key:value`."""
    values: dict[str, Any] = {}
    unknown = []
    for word in text.split(","):
        word = word.strip()
        key, _, value = word.partition(":")
        if key in SIZES and value.isdecimal():
            values[key.removesuffix("_mb")] = int(value) * MIB
        elif key == "expandable_segments":
            values[key] = value == "True"
        elif key == "per_process_memory_fraction" and FRACTION.fullmatch(value):
            values["memory_fraction"] = float(value)
        elif word and not word.startswith(WITHOUT_EFFECT):
            unknown.append(word)
    return Settings(**values), unknown


@dataclass(frozen=True)
class Limits:
    """What the allocator of a process has. warnings: of settings that are not modelled."""

    capacity_bytes: int
    settings: Settings
    warnings: list[str]


def limits_of(capacity_bytes: int, gpu_bytes: int) -> Limits:
    """The limits by PYTORCH_ALLOC_CONF. capacity_bytes: what the GPU has for the allocator; gpu_bytes: the whole."""
    text = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    settings, unknown = settings_from(text)
    if settings.memory_fraction < 1:  # setMemoryFraction: of the device's memory, before the context
        capacity_bytes = min(capacity_bytes, int(settings.memory_fraction * gpu_bytes))
    warnings = [f"PYTORCH_ALLOC_CONF has {setting}, which the estimate does not model." for setting in unknown]
    return Limits(capacity_bytes, settings, warnings)
