"""What a process of an estimate runs. The libraries are imported when it does, if its parent has not done so."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path


def run(overrides: list[str], folder: Path, pipe: Connection, advise: bool) -> None:
    """See `estimate_worker.answer`."""
    from recipes.foresight import estimate_worker

    estimate_worker.answer(overrides, folder, pipe, advise)
