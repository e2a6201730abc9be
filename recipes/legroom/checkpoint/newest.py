"""Finds the checkpoint from which a training resumes."""

from collections.abc import Callable, Mapping
from pathlib import Path

from legroom import config
from legroom.config import Config
from legroom.errors import Refusal
from legroom.options import resume
from legroom.ranks import collectives
from legroom.records import checkpoint_files
from legroom.records.checkpoint_files import BrokenCheckpoint, Checkpoint
from legroom.records.printable import printable


def checkpoint_for(
    cfg: Config, folder: Path | None, fingerprints: Mapping[str, str], warn: Callable[[str], None]
) -> Checkpoint | None:
    """The newest complete checkpoint of the run's own folder or of the folder that `resume` names; None without one.

    Rank 0 searches and sends the result to the other ranks. A broken checkpoint is skipped with a warning.
    fingerprints: what this training depends on, on rank 0. Raises Refusal if `resume` names a folder without a complete
    checkpoint, or if the checkpoint was trained on something else.
    """
    if cfg.resume is None:
        return None
    checkpoint, reason, changed = None, "", []
    if collectives.rank_index() == 0:
        assert folder is not None, "rank 0 makes the folder"
        paths = checkpoint_files.found(folder) if cfg.resume == resume.LATEST else resume.candidates(cfg.resume)
        for path in paths:
            try:
                checkpoint = _of_this_training(cfg, checkpoint_files.verify(path))
                break
            except BrokenCheckpoint as broken:
                reason = reason or printable(str(broken))
                warn(printable(f"checkpoint {path.name} is skipped: {broken}."))
        if checkpoint is None and paths and cfg.resume == resume.LATEST:
            warn(f"resume={resume.LATEST}: none of the checkpoints can be used, so the training begins at step 0.")
        if checkpoint is not None:
            changed = _changed(cfg, checkpoint, fingerprints, warn)
    checkpoint, reason, changed = collectives.all_gather((checkpoint, reason, changed))[0]
    if checkpoint is not None and changed:
        names = ",".join(changed)
        raise Refusal(
            f"resume={cfg.resume}: {', '.join(resume.FINGERPRINTS[name] for name in changed)} not what "
            f"{printable(checkpoint.folder.name)} was trained on. Give back what it was trained on, or, if that is "
            f"meant, type resume_allow=[{names}]."
        )
    if checkpoint is None and cfg.resume != resume.LATEST:
        raise Refusal(f"resume={cfg.resume}: no checkpoint there is whole: {reason}.")
    return checkpoint


def _changed(
    cfg: Config, checkpoint: Checkpoint, fingerprints: Mapping[str, str], warn: Callable[[str], None]
) -> list[str]:
    """What differs from what the checkpoint was trained on and is not allowed to: names of `resume.FINGERPRINTS`."""
    theirs = checkpoint.values["fingerprints"]
    others = [name for name in resume.FINGERPRINTS if fingerprints.get(name, theirs.get(name)) != theirs.get(name)]
    allowed = [name for name in others if name in (cfg.resume_allow or [])]
    if allowed:
        warn(f"resume_allow: {checkpoint.folder.name} was trained on another {', '.join(allowed)}.")
    return [name for name in others if name not in allowed]


def _of_this_training(cfg: Config, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint. Raises BrokenCheckpoint if another training saved it; the parent looks at the newest alone."""
    try:
        theirs = checkpoint.values["config"]
        others = resume.differences(config.to_dict(cfg), theirs, any_length=cfg.resume != resume.LATEST)
    except (KeyError, TypeError):
        others = ["its configuration is not complete"]
    if others:
        raise BrokenCheckpoint(f"it was saved by another training: {', '.join(others)}")
    return checkpoint
