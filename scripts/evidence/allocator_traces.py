"""Traces of CUDA's caching allocator: recorded in a real training, kept as small files, replayed by the model of it."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import library_patches
import torch

from legroom.data import data_loader
from legroom.machine import worker_environment
from legroom.options import compose
from legroom.parallelism import unwrap
from legroom.ranks.rank_info import RankInfo
from legroom.training import accelerate_loop, setup

MAX_ENTRIES = 2_000_000  # that torch keeps of the allocator's history


@dataclass
class Trace:
    """What one process asked of the allocator, and what the allocator held at its peak.

    events: (key, bytes) requests memory, (key, -1) frees what the request with that key got. capacity_bytes: what was
    free on the device before the process used it.
    """

    overrides: list[str]
    device: str
    torch: str
    capacity_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    events: list[tuple[int, int]]


def events_of(history: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """The requests in the allocator's history of a device (`library_patches.allocator_history`), as `Trace.events`.

    A block is free when torch asks for that (free_requested): the next request on the same stream may get it.
    """
    events, keys = [], {}
    for entry in history:
        if entry["action"] == "alloc":
            keys[entry["addr"]] = len(events)
            events.append((len(events), entry["size"]))
        elif entry["action"] == "free_requested" and entry["addr"] in keys:
            events.append((keys.pop(entry["addr"]), -1))
    return events


def record(conf: Path, overrides: list[str], folder: Path, steps: int = 3) -> Trace:
    """Train some steps in the raw loop on the GPU, in this process, and record what the allocator is asked.

    Call it once per process: nothing may be on the device before. conf: the folder of the menus. folder: the run's.
    Raises ValueError for overrides that are refused.
    """
    cfg, _ = compose.compose_valid(conf, "recipe=accelerate", *overrides)
    worker_environment.prepare(cfg, RankInfo())  # one GPU: TrainingArguments would take all that are visible
    torch.cuda.init()
    free_bytes, _ = torch.cuda.mem_get_info()
    library_patches.start_allocator_history(MAX_ENTRIES)
    training = setup.build(cfg, str(folder))
    assert isinstance(training.loop, accelerate_loop.Loop), "recipe=accelerate"
    training.model.train()
    unwrap.start_training(training.loop.optimizer)
    for _ in range(steps):
        batches = data_loader.largest_step(training.data, training.args)
        training.loop.step(next(accelerate_loop.chunks(batches, training.args.gradient_accumulation_steps)))
    torch.cuda.synchronize()
    history = library_patches.allocator_history(torch.cuda.current_device())
    library_patches.stop_allocator_history()
    return Trace(
        overrides,
        torch.cuda.get_device_name(),
        torch.__version__,
        free_bytes,
        torch.cuda.max_memory_allocated(),
        torch.cuda.max_memory_reserved(),
        events_of(history),
    )


def write(trace: Trace, path: Path) -> None:
    """Write a trace as compressed JSON. Raises OSError."""
    with gzip.open(path, "wt") as file:
        json.dump(asdict(trace), file)


def read(path: Path) -> Trace:
    """Read a trace. Raises OSError."""
    with gzip.open(path, "rt") as file:
        return Trace(**json.load(file))
