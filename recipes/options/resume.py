"""recipes.options.resume"""

from __future__ import annotations

import contextlib
from pathlib import Path

from recipes.config import to_dict
from recipes.records import checkpoint_files, record, record_file, run_folder
from recipes.records.checkpoint_files import BrokenCheckpoint

LATEST = "latest"
NO_FOLDER = "hydra.run.dir=."  # what a launcher's ranks are told, other than rank 0: make no folder
# How a training is started, watched, saved, measured and spread over devices: not what is trained.
NOT_TRAINING = {
    "launch",
    "tracker",
    "resume",
    "save",
    "measure",
    "eval",
    "parallelism",
    "batch",
    "accumulation",
    "device",
}
NOT_TRAINING_KEYS = {"train": {"log_seconds"}, "data": {"workers", "pin_memory"}}
LENGTH = {"train.max_steps", "train.epochs"}  # a folder that is named may be trained longer


def signature(config: dict) -> dict:
    """What makes a training this one and no other: flat, 'menu.key' -> value. config: resolved, as in a record."""
    told = {}
    for name, value in config.items():
        if name in NOT_TRAINING:
            continue
        if not isinstance(value, dict):
            told[name] = value
            continue
        told |= {f"{name}.{key}": each for key, each in value.items() if key not in NOT_TRAINING_KEYS.get(name, ())}
    told["batch.effective"] = (
        config["batch"]["per_device"]
        * config["accumulation"]["steps"]
        * (config.get("parallelism", {}).get("replicas") or 1)
    )
    return told


def differences(ours: dict, theirs: dict, besides: set[str] = frozenset()) -> list[str]:
    """Where two configurations are not the same training, as 'key=ours (there theirs)'."""
    mine, other = signature(ours), signature(theirs)
    return [
        f"{key}={mine.get(key)} (there {other.get(key)})"
        for key in sorted(mine.keys() | other.keys())
        if mine.get(key) != other.get(key) and key not in besides
    ]


def same(ours: dict, theirs: dict, besides: set[str] = frozenset()) -> bool:
    """Whether two configurations are the same training; what an older schema wrote is not."""
    try:
        return not differences(ours, theirs, besides)
    except (KeyError, TypeError, AttributeError):
        return False


# --- before a job: in the parent -----------------------------------------------------------------


def resolve(cfg) -> list[str]:
    """A folder's whole name: a worker may stand elsewhere."""
    if cfg.resume not in (None, LATEST):
        cfg.resume = str(Path(cfg.resume).expanduser().absolute())
    return []


def problems(cfg) -> list[str]:
    """A folder that is named but cannot be resumed."""
    if cfg.resume in (None, LATEST):
        return []
    folders = candidates(cfg.resume)
    if not folders:
        return [
            f"resume={cfg.resume} holds no checkpoint: give a run's folder or one of the folders in its "
            f"{checkpoint_files.FOLDER}/, or resume={LATEST}, which starts afresh where there is none."
        ]
    step = checkpoint_files.step_of(folders[0])
    if cfg.train.max_steps is not None and cfg.train.max_steps < step:
        return [
            f"resume={cfg.resume} stands at step {step}, past train.max_steps={cfg.train.max_steps}. Give more steps."
        ]
    return mismatch_problems(cfg, folders, LENGTH)


def mismatch_problems(cfg, folders: list[Path], besides: set[str] = frozenset()) -> list[str]:
    """A problem where checkpoints are of another training, told by the first of them that can be read."""
    for folder in folders:
        with contextlib.suppress(BrokenCheckpoint):
            others = differences(to_dict(cfg), checkpoint_files.config_of(folder), besides)
            return (
                [f"{folder} is of another training: {', '.join(others)}. Give the same values, or another folder."]
                if others
                else []
            )
    return []


def candidates(named: str) -> list[Path]:
    """The checkpoints that a folder means, the newest first: a run's, or the folder itself."""
    folder = Path(named)
    if checkpoint_files.NAME.fullmatch(folder.name):
        return [folder] if folder.is_dir() else []
    return checkpoint_files.found(folder)


def resume_folder(cfg, folder: Path, words: list[str]) -> Path:
    """The folder in which a run goes on with resume=latest. folder: Hydra's; words: the overrides of Hydra's own keys.

    A folder that was chosen is the run's own. Otherwise it is the run below outputs/ that has the newest
    checkpoint of the same training; and Hydra's new one where there is none.
    """
    chosen = [word for word in words if word.startswith(("hydra.run.dir=", "hydra.sweep.dir=")) and word != NO_FOLDER]
    if cfg.resume != LATEST or chosen:
        return folder
    ours, newest = to_dict(cfg), {}
    for manifest in (
        Path("outputs").absolute().glob(f"*/*/{checkpoint_files.FOLDER}/step-*/{checkpoint_files.MANIFEST}")
    ):
        with contextlib.suppress(BrokenCheckpoint, OSError):
            if same(ours, checkpoint_files.config_of(manifest.parent)):
                newest[manifest.stat().st_mtime_ns] = manifest.parents[2]
    return newest[max(newest)] if newest else folder


def matching_record(cfg, folder: Path) -> record.Record | None:
    """The record in a folder, where resuming may take its place: it is of the same training. Else None."""
    if cfg.resume is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        before = record_file.read(folder)
        if same(to_dict(cfg), before.config, LENGTH if cfg.resume != LATEST else frozenset()):
            return before
    return None


def is_finished(cfg, folder: Path, before: record.Record | None) -> bool:
    """Whether resume=latest finds a finished run, with nothing left to do. before: what `goes_on` gave.

    The model that save.final asks for, and that the run did not save, is made from its last checkpoint.
    """
    if before is None or before.status != "ok" or cfg.resume != LATEST:
        return False
    return not (model_missing(cfg, folder) and checkpoint_files.found(folder))


def keep_figures(before: record.Record | None, outcome: record.Record, folder: Path) -> None:
    """A run that was over already, and now only left its model: what it measured while it trained stands."""
    if (
        before is not None
        and before.status == outcome.status == "ok"
        and before.training.steps == outcome.training.steps
    ):
        outcome.speed, outcome.memory = before.speed, before.memory
        record_file.write(outcome, folder)


def model_missing(cfg, folder: Path) -> bool:
    """Whether save.final asks for a model that is not there."""
    return cfg.save.final and not Path(folder, run_folder.MODEL_FOLDER).is_dir()
