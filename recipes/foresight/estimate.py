"""recipe=estimate: the record of a training that does not take place. Its figures are predictions."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from recipes.foresight import prediction
from recipes.machine import host
from recipes.records.record import Record

TIMELINE = "timeline.png"


# --- in the worker -----------------------------------------------------------------------------------


def run(cfg, outcome: Record, folder: Path, progress) -> None:
    """Predict, and fill the record in. Status oom: it would not fit, and the figures are of what it demands."""
    import torch  # noqa: F401
    import transformers
    import transformers.trainer

    from recipes.foresight import simulation

    transformers.logging.disable_progress_bar()
    progress.enter("load", "estimating")
    start = time.perf_counter()
    seen = simulation.simulate_step(cfg, str(folder), prediction.allocator_bytes(cfg), cfg.estimate.explain)
    prediction.fill(cfg, outcome, seen)
    if cfg.estimate.explain:
        progress.enter("load", "trying levers")
        _explain(cfg, outcome, seen, folder)
    if outcome.estimate is not None:
        outcome.estimate.seconds = time.perf_counter() - start


def _explain(cfg, outcome: Record, seen, folder: Path) -> None:
    from recipes.foresight import explain

    title = f"{cfg.model.pretrained or cfg.model.name}: {' '.join(outcome.overrides)}"
    capacity = prediction.allocator_bytes(cfg) if host.gpu(cfg) else None
    try:
        explain.picture(seen.trace, folder / TIMELINE, title, capacity)
    except ImportError:
        outcome.warnings.append("there is no picture: it needs matplotlib (pip install matplotlib).")
    if outcome.estimate is not None:
        outcome.estimate.largest = explain.largest(seen.trace)
        outcome.estimate.levers = [
            asdict(lever) for lever in explain.levers(cfg, outcome.memory.device_used_bytes, str(folder))
        ]
