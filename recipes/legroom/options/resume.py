"""resume: which run or checkpoint a training continues, and whether it is the same training."""

import contextlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from legroom import paths
from legroom.config import GROUPS, Config, identity_of, kind_of, kinds_of, to_dict
from legroom.config.fields import LENGTH, TRAINING
from legroom.options import hooks, save
from legroom.options import model as model_options
from legroom.records import checkpoint_files, record, record_file, run_folder
from legroom.records.checkpoint_files import BrokenCheckpoint
from legroom.records.printable import printable
from legroom.records.saved_model import ADAPTER_FILE

LATEST = "latest"
# What a checkpoint has a fingerprint of, and what is said where it differs.
FINGERPRINTS = {
    "data": "the rows (data) are",
    "model": "the base model (model) is",
    "template": "the chat template (template) is",
    "tokenizer": "the tokenizer (tokenizer) is",
}
# The keys whose values may differ where `resume_allow` names them: data, model and tokenizer may lie in another place,
# as on another machine; a training that diverged goes on from its last checkpoint at a lower rate.
MAY_DIFFER = {
    "data": ("data.path", "data.eval_path"),
    "model": ("model.pretrained",),
    "tokenizer": ("data.tokenizer",),
    "learning_rate": ("train.learning_rate",),
}
ALLOWED = tuple(dict.fromkeys([*FINGERPRINTS, *MAY_DIFFER]))  # the names that `resume_allow` takes
MOST_CHARACTERS = 200  # of a difference in a message
NO_FOLDER = "hydra.run.dir=."  # what ranks other than 0 are started with, so that Hydra makes no folder for them


def signature(config: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a training from another one: key -> value, of the keys whose identity says so.

    config: resolved, as in a record. Keys that the schema does not know count.
    """
    model = model_options.recorded(config["model"])
    if model.get("attention") == model_options.AUTO:  # a model that has sdpa gets it; that was the default before
        model["attention"] = "sdpa"
    found = {}
    for section, values in {**config, "model": model}.items():
        nested = isinstance(values, dict)
        if nested and section in GROUPS and kinds_of(section):
            values = {**values, "kind": kind_of(config, section)}  # which records of older versions do not have
        keys = {f"{section}.{key}": value for key, value in values.items()} if nested else {section: values}
        found |= {key: value for key, value in keys.items() if identity_of(key) & {TRAINING, LENGTH}}
    found["batch.effective"] = (
        config["batch"]["per_device"]
        * config["accumulation"]["steps"]
        * (config.get("parallelism", {}).get("replicas") or 1)
    )
    return found


def differences(ours: Mapping, theirs: Mapping, any_length: bool = False) -> list[str]:
    """Where two resolved configurations are not the same training, as 'key=ours (there theirs)'.

    any_length: the keys that only say how long to train may differ. So may the keys of what `resume_allow` names.
    """
    moved = {key for name in ours.get("resume_allow") or () for key in MAY_DIFFER.get(name, ())}
    mine, other = signature(ours), signature(theirs)
    return [
        printable(f"{key}={mine.get(key)} (there {other.get(key)})"[:MOST_CHARACTERS])
        for key in sorted(mine.keys() | other.keys())
        if mine.get(key) != other.get(key) and key not in moved and not (any_length and LENGTH in identity_of(key))
    ]


def same(ours: Mapping, theirs: Mapping, any_length: bool = False) -> bool:
    """Whether two configurations are the same training; one that an older schema wrote is not."""
    try:
        return not differences(ours, theirs, any_length)
    except (KeyError, TypeError, AttributeError):
        return False


# --- before a job: in the parent -----------------------------------------------------------------


def resolve(cfg: Config) -> list[str]:
    """Makes a folder's path absolute: the worker may have another working folder."""
    if cfg.resume not in (None, LATEST):
        cfg.resume = str(paths.expanded(cfg.resume).absolute())
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A named folder that cannot be resumed, and names that no fingerprint has."""
    names, known = cfg.resume_allow or [], ",".join(ALLOWED)
    if unknown := [name for name in names if name not in ALLOWED]:
        return [f"resume_allow has no {unknown[0]}. What may differ is of [{known}]."]
    if names and cfg.resume is None:
        return ["resume_allow is about what a resumed training goes on with: add resume=, or leave it out."]
    if cfg.resume in (None, LATEST):
        return []
    folders = candidates(cfg.resume)
    if not folders:
        return [
            f"resume={cfg.resume} holds no checkpoint: give a run's folder or one of the folders in its "
            f"{checkpoint_files.FOLDER}/, or resume={LATEST}, which starts from the beginning where there is none."
        ]
    step = checkpoint_files.step_of(next(filter(_is_readable, folders), folders[0]))
    if cfg.train.max_steps is not None and cfg.train.max_steps < step:
        return [
            f"resume={cfg.resume} stands at step {step}, past train.max_steps={cfg.train.max_steps}. Give more steps."
        ]
    return mismatch_problems(cfg, folders, any_length=True)


def _is_readable(folder: Path) -> bool:
    try:
        return bool(checkpoint_files.config_of(folder))
    except BrokenCheckpoint:
        return False


def mismatch_problems(cfg: Config, folders: list[Path], any_length: bool = False) -> list[str]:
    """A problem where the first checkpoint that can be read was saved by another training."""
    for folder in folders:
        try:
            others = differences(to_dict(cfg), checkpoint_files.config_of(folder), any_length)
        except BrokenCheckpoint:
            continue
        except (KeyError, TypeError):
            others = ["it is of another version, or not complete"]
        if not others:
            return []
        problem = f"{folder} was saved by another training: {', '.join(others)}."
        if same(to_dict(cfg), checkpoint_files.config_of(folder), any_length=True):
            step, run = checkpoint_files.step_of(folder), folder.parent.parent
            return [f"{problem} Type resume={run} to go on from step {step} with another length."]
        names = [name for name, keys in MAY_DIFFER.items() if any(text.startswith(keys) for text in others)]
        allow = f" Type resume_allow=[{','.join(names)}] if the other value is meant." if names else ""
        return [f"{problem} Give the same values, or another folder.{allow}"]
    return []


def candidates(named: str) -> list[Path]:
    """The checkpoints of a run's folder, the newest first; or the folder itself, where it is a checkpoint."""
    folder = Path(named)
    if checkpoint_files.NAME.fullmatch(folder.name):
        return [folder] if folder.is_dir() else []
    return checkpoint_files.found(folder)


def resume_folder(cfg: Config, folder: Path, hydra_overrides: list[str]) -> Path:
    """The folder of a run with resume=latest.

    folder: the one that Hydra made up, or that was typed. A typed folder is used. Otherwise it is the folder of the
    run below outputs/ with the newest checkpoint of the same training, or `folder` where there is none.
    """
    folder_keys = ("hydra.run.dir=", "hydra.sweep.dir=")
    chosen = [each for each in hydra_overrides if each.startswith(folder_keys) and each != NO_FOLDER]
    if cfg.resume != LATEST or chosen:
        return folder
    found = _newest_of(cfg, Path("outputs").absolute().glob("*/*"))
    return found.parent.parent if found is not None else folder


def _newest_of(cfg: Config, runs: Iterable[Path], any_length: bool = False) -> Path | None:
    """The checkpoint of this training in folders of runs that was written last. any_length: see `differences`."""
    ours, newest = to_dict(cfg), {}
    for run in runs:
        for manifest in run.glob(f"{checkpoint_files.FOLDER}/step-*/{checkpoint_files.MANIFEST}"):
            with contextlib.suppress(BrokenCheckpoint, OSError):
                if same(ours, checkpoint_files.config_of(manifest.parent), any_length):
                    newest[manifest.stat().st_mtime_ns] = manifest.parent
    return newest[max(newest)] if newest else None


def begins_anew(cfg: Config, folder: Path) -> list[str]:
    """A warning where resume=latest finds nothing in the folder to go on from, with a checkpoint that another folder
    has of the same training, of any length. folder: from `resume_folder`."""
    if cfg.resume != LATEST or checkpoint_files.found(folder):
        return []
    near = _newest_of(cfg, [*Path("outputs").absolute().glob("*/*"), *folder.parent.glob("*")], any_length=True)
    line = f"resume={LATEST} found no checkpoint of this training in {folder}: it begins at step 0."
    if near is None:
        return [line]
    others = differences(to_dict(cfg), checkpoint_files.config_of(near))
    what = f"{near} is of the same training{' but for ' * bool(others)}{', '.join(others)}"
    return [
        printable(f"{line} {what}: resume={near.parent.parent} goes on from step {checkpoint_files.step_of(near)}.")
    ]


def matching_record(cfg: Config, folder: Path) -> record.Record | None:
    """The record in a folder that the resumed run may replace, since it is of the same training; else None."""
    if cfg.resume is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        before = record_file.read(folder)
        if same(to_dict(cfg), before.config, any_length=cfg.resume != LATEST):
            return before
    return None


def save_as_before(cfg: Config, outcome: record.Record, before: record.Record | None) -> list[str]:
    """Has a resumed training save its model as the training before did, where nothing else is typed: the folder would
    keep the model of a shorter one. outcome: the new record. Returns why that cannot be."""
    typed = {each.partition("=")[0] for each in outcome.overrides}
    if before is None or not before.config["save"]["final"] or "save.final" in typed:
        return []
    kept = {key: before.config["save"][key] for key in ("final", "merge", "max_shard_gb") if f"save.{key}" not in typed}
    vars(cfg.save).update(kept)
    outcome.config["save"] |= kept
    return save.problems(cfg)


def damaged_record(cfg: Config, folder: Path) -> str | None:
    """A warning where a record cannot be read beside checkpoints of the training that is resumed; else None."""
    found = checkpoint_files.found(folder) if cfg.resume is not None else []
    with contextlib.suppress(OSError):
        try:
            record_file.read(folder)
        except ValueError as error:
            ours = not mismatch_problems(cfg, found, any_length=cfg.resume != LATEST)
            if any(map(_is_readable, found)) and ours:
                return printable(f"the record of the run so far is replaced, since it cannot be used: {error}")
    return None


def is_finished(cfg: Config, folder: Path, before: record.Record | None) -> bool:
    """Whether resume=latest finds a finished run, with nothing left to do. before: from `matching_record`.

    A model that save.final asks for and that was not saved can still be made from the last checkpoint, and the memory
    of a run that was killed while it was counted can still be counted.
    """
    if before is None or before.status != "ok" or cfg.resume != LATEST:
        return False
    missing = model_missing(cfg, folder) or record.NOT_COUNTED in before.warnings
    return not (missing and checkpoint_files.found(folder))


def keep_figures(before: record.Record | None, outcome: record.Record, folder: Path) -> bool:
    """Puts the speed and the memory of a finished run back into its record, after a run that only saved its model or
    counted its memory.

    Returns whether the record has changed.
    """
    if (
        before is not None
        and before.status == outcome.status == "ok"
        and before.training.steps == outcome.training.steps == outcome.training.resumed_from_step
    ):
        for part, earlier in ((outcome.speed, before.speed), (outcome.memory, before.memory)):
            counted = record.NOT_COUNTED not in before.warnings  # else the earlier figures are those of the steps alone
            for key, value in vars(earlier).items():
                if counted or isinstance(value, int | float):
                    setattr(part, key, value)
        outcome.training.resumed_from_step = before.training.resumed_from_step  # these figures are of all its steps
        record_file.write(outcome, folder)
        return True
    return False


def model_missing(cfg: Config, folder: Path) -> bool:
    """Whether save.final asks for a model that was not saved yet, or save.merge for more than its adapter."""
    model = folder / run_folder.MODEL_FOLDER
    return bool(cfg.save.final) and (not model.is_dir() or cfg.save.merge and (model / ADAPTER_FILE).is_file())


hooks.register_module("resume", globals())
