"""Real traces of CUDA's caching allocator, for its model to reproduce: as small files, and how they are recorded."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path

HISTORY = 2_000_000  # entries that torch keeps of its allocator's history


@dataclass
class Trace:
    """What one process asked of the allocator, and what it then held.

    events: (key, bytes) asks, (key, -1) gives back. capacity_bytes: what the device had for the allocator.
    """

    words: list[str]
    device: str
    torch: str
    capacity_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    events: list[tuple[int, int]]


def events_of(history: list[dict]) -> list[tuple[int, int]]:
    """The requests in a device's history, as `torch.cuda.memory._snapshot()["device_traces"]` has it.

    A block is given back when torch asks for it to be: the stream that used it is the one that gets it next.
    """
    events, keys = [], {}
    for entry in history:
        if entry["action"] == "alloc":
            keys[entry["addr"]] = len(events)
            events.append((len(events), entry["size"]))
        elif entry["action"] == "free_requested" and entry["addr"] in keys:
            events.append((keys.pop(entry["addr"]), -1))
    return events


def record(conf: Path, words: list[str], folder: Path, steps: int = 3) -> Trace:
    """Train some steps in the raw loop on the GPU, in this process, and take down what the allocator was asked.

    Call it once in a process: nothing may be on the device before. Raises ValueError for words that are refused.
    """
    import torch

    from recipes.data import data_loader
    from recipes.options import compose
    from recipes.training import setup
    from recipes.training.accelerate_loop import chunks

    cfg, _, problems = compose.compose(conf, "recipe=accelerate", *words)
    if problems:
        raise ValueError("\n".join(problems))
    torch.cuda.init()
    free, _ = torch.cuda.mem_get_info()
    torch.cuda.memory._record_memory_history(max_entries=HISTORY, stacks="python", context=None)
    training = setup.build(cfg, str(folder))
    training.model.train()
    for _ in range(steps):
        batches = data_loader.largest_step(training.data, training.args)
        training.loop.step(next(chunks(batches, training.args.gradient_accumulation_steps)))
    torch.cuda.synchronize()
    history = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    return Trace(
        words,
        torch.cuda.get_device_name(),
        torch.__version__,
        free,
        torch.cuda.max_memory_allocated(),
        torch.cuda.max_memory_reserved(),
        events_of(history),
    )


def write(trace: Trace, path: Path) -> None:
    """Write a trace. Raises OSError."""
    with gzip.open(path, "wt") as file:
        json.dump(asdict(trace), file)


def read(path: Path) -> Trace:
    """A trace that was written. Raises OSError."""
    with gzip.open(path, "rt") as file:
        return Trace(**json.load(file))
