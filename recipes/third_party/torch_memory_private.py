"""torch's recording of what CUDA's caching allocator is asked. torch.cuda.memory documents it, under private names."""

from __future__ import annotations

from typing import Any

import torch


def start_recording(max_entries: int) -> None:
    """Keep the last `max_entries` requests of the allocator, without the stack of each."""
    torch.cuda.memory._record_memory_history(max_entries=max_entries, stacks="python", context=None)


def recorded(device: int) -> list[dict[str, Any]]:
    """What was recorded for a device: entries with action, addr, size (bytes) and stream, oldest first."""
    return torch.cuda.memory._snapshot()["device_traces"][device]


def stop_recording() -> None:
    torch.cuda.memory._record_memory_history(enabled=None)
