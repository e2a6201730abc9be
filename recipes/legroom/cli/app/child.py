"""What a process of an estimate runs. The libraries are imported when it does, if its parent has not done so."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

from legroom.machine.worker_environment import SIMULATIONS

SHARED = "simulations"


def run(overrides: list[str], folder: Path, pipe: Connection, advise: bool) -> None:
    """See `estimate_worker.answer`. Cards of the same rules share a simulation, which lies beside the folder."""
    if not advise:
        shared = folder.parent / SHARED
        shared.mkdir(parents=True, exist_ok=True)
        os.environ[SIMULATIONS] = str(shared)
    from legroom.foresight import estimate_worker

    estimate_worker.answer(overrides, folder, pipe, advise)
