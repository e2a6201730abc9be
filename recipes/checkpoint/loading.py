"""resume: which checkpoint a training goes on from, and whether it is one of this training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from recipes.errors import Refusal
from recipes.options import resume
from recipes.ranks import collectives
from recipes.records import checkpoint_files
from recipes.records.checkpoint_files import BrokenCheckpoint, Checkpoint

# --- in the worker -------------------------------------------------------------------------------


def checkpoint_for(cfg, folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint of the run's own folder, or of the one that is named; None: from the start.

    A broken one is skipped with a warning. Rank 0 looks, and tells the others. Raises Refusal where a folder is
    named and none in it is whole.
    """
    if cfg.resume is None:
        return None
    found = None
    if collectives.rank_index() == 0:
        for path in checkpoint_files.found(folder) if cfg.resume == resume.LATEST else resume.candidates(cfg.resume):
            try:
                found = checkpoint_files.verify(path)
                break
            except BrokenCheckpoint as broken:
                warn(f"checkpoint {path.name} is skipped: {broken}.")
    found = collectives.all_gather(found)[0]
    if found is None and cfg.resume != resume.LATEST:
        raise Refusal(f"resume={cfg.resume}: no checkpoint there is whole.")
    return found
