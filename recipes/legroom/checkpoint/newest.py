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
        checkpoint, reason = _newest_whole(cfg, folder, warn)
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


def _newest_whole(cfg: Config, folder: Path, warn: Callable[[str], None]) -> tuple[Checkpoint | None, str]:
    """(the checkpoint, or None; why the newest one was skipped, or nothing)."""
    is_latest = cfg.resume == resume.LATEST
    if is_latest:
        paths = checkpoint_files.in_run(folder)
    else:
        paths = resume.candidates(str(cfg.resume))
    reason = ""
    for path in paths:
        try:
            checkpoint = checkpoint_files.verify(path)
            _check_training(cfg, checkpoint)
        except BrokenCheckpoint as broken:
            if not reason:
                reason = printable(str(broken))
            warn(printable(f"checkpoint {path.name} is skipped: {broken}."))
        else:
            return checkpoint, reason
    if paths and is_latest:
        warn(f"resume={resume.LATEST}: none of the checkpoints can be used, so the training begins at step 0.")
    return None, reason


def _check_training(cfg: Config, checkpoint: Checkpoint) -> None:
    """Raises BrokenCheckpoint if another training saved the checkpoint; the parent looks at the newest alone."""
    try:
        saved = checkpoint.values["config"]
        differences = resume.differences(config.to_dict(cfg), saved, any_length=cfg.resume != resume.LATEST)
    except (KeyError, TypeError):
        differences = ["its configuration is not complete"]
    if differences:
        raise BrokenCheckpoint(f"it was saved by another training: {', '.join(differences)}")


def _changed(
    cfg: Config, checkpoint: Checkpoint, fingerprints: Mapping[str, str], warn: Callable[[str], None]
) -> list[str]:
    """What differs from what the checkpoint was trained on and is not allowed to: names of `resume.FINGERPRINTS`."""
    saved = checkpoint.values["fingerprints"]
    allowed, changed = [], []
    for name in resume.FINGERPRINTS:
        if name not in fingerprints or fingerprints[name] == saved.get(name):
            continue
        if name in (cfg.resume_allow or []):
            allowed.append(name)
        else:
            changed.append(name)
    if allowed:
        warn(f"resume_allow: {checkpoint.folder.name} was trained on another {', '.join(allowed)}.")
    return changed
