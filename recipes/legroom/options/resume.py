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
    identifying = {}
    for section, values in {**config, "model": model}.items():
        if not isinstance(values, dict):
            keys = {section: values}
        else:
            if section in GROUPS and kinds_of(section):
                values = {**values, "kind": kind_of(config, section)}  # which records of older versions do not have
            if section == "precision":
                values = _types_of_older_record(config) | values
            keys = {f"{section}.{key}": value for key, value in values.items()}
        for key, value in keys.items():
            if identity_of(key) & {TRAINING, LENGTH}:
                identifying[key] = value
    replicas = config.get("parallelism", {}).get("replicas") or 1
    identifying["batch.effective"] = config["batch"]["per_device"] * config["accumulation"]["steps"] * replicas
    return identifying


def _types_of_older_record(config: Mapping[str, Any]) -> dict[str, str]:
    """`precision.weights`, `base` and `adapter` of a record of before they were keys."""
    kind = kind_of(config, "precision")
    weights = "bf16" if kind == "bf16_pure" else "fp32"
    if kind_of(config, "adapter") in (None, "none"):
        return {"weights": weights}
    base = weights
    if config["adapter"].get("bits") and kind in ("fp16", "bf16"):
        base = kind
    return {"weights": weights, "base": base, "adapter": weights}


def differences(ours: Mapping, theirs: Mapping, any_length: bool = False) -> list[str]:
    """Where two resolved configurations are not the same training, as 'key=ours (there theirs)'.

    any_length: the keys that only say how long to train may differ. So may the keys of what `resume_allow` names.
    """
    may_differ: set[str] = set()
    for name in ours.get("resume_allow") or ():
        may_differ.update(MAY_DIFFER.get(name, ()))
    here = signature(ours)
    there = signature(theirs)
    lines = []
    for key in sorted(here.keys() | there.keys()):
        if here.get(key) == there.get(key) or key in may_differ:
            continue
        if any_length and LENGTH in identity_of(key):
            continue
        difference = f"{key}={here.get(key)} (there {there.get(key)})"
        lines.append(printable(difference[:MOST_CHARACTERS]))
    return lines


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
    names = cfg.resume_allow or []
    for name in names:
        if name not in ALLOWED:
            return [f"resume_allow has no {name}. What may differ is of [{','.join(ALLOWED)}]."]
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
    readable = [folder for folder in folders if _is_readable(folder)]
    step = checkpoint_files.step_of((readable or folders)[0])
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
            saved = checkpoint_files.config_of(folder)
        except BrokenCheckpoint:
            continue
        try:
            different = differences(to_dict(cfg), saved, any_length)
        except (KeyError, TypeError):
            different = ["it is of another version, or not complete"]
        if not different:
            return []
        problem = f"{folder} was saved by another training: {', '.join(different)}."
        if same(to_dict(cfg), saved, any_length=True):
            step = checkpoint_files.step_of(folder)
            return [f"{problem} Type resume={folder.parent.parent} to go on from step {step} with another length."]
        return [f"{problem} Give the same values, or another folder.{_how_to_allow(different)}"]
    return []


def _how_to_allow(different: list[str]) -> str:
    """' Type resume_allow=...' where it lets some of these differences be; '' where it does not."""
    names = []
    for name, keys in MAY_DIFFER.items():
        if any(line.startswith(keys) for line in different):
            names.append(name)
    if not names:
        return ""
    return f" Type resume_allow=[{','.join(names)}] if the other value is meant."


def candidates(named: str) -> list[Path]:
    """The checkpoints of a run's folder, the newest first; or the folder itself, where it is a checkpoint."""
    folder = Path(named)
    if checkpoint_files.NAME.fullmatch(folder.name):
        return [folder] if folder.is_dir() else []
    return checkpoint_files.in_run(folder)


def resume_folder(cfg: Config, folder: Path, hydra_overrides: list[str]) -> Path:
    """The folder of a run with resume=latest.

    folder: the one that Hydra made up, or that was typed. A typed folder is used. Otherwise it is the folder of the
    run below outputs/ with the newest checkpoint of the same training, or `folder` where there is none.
    """
    if cfg.resume != LATEST:
        return folder
    for override in hydra_overrides:
        if override.startswith(("hydra.run.dir=", "hydra.sweep.dir=")) and override != NO_FOLDER:
            return folder
    newest = _newest_of(cfg, Path("outputs").absolute().glob("*/*"))
    if newest is None:
        return folder
    return newest.parent.parent


def _newest_of(cfg: Config, runs: Iterable[Path], any_length: bool = False) -> Path | None:
    """The checkpoint of this training in folders of runs that was written last. any_length: see `differences`."""
    ours = to_dict(cfg)
    newest = None
    newest_time = 0
    for run in runs:
        for manifest in run.glob(f"{checkpoint_files.FOLDER}/step-*/{checkpoint_files.MANIFEST}"):
            with contextlib.suppress(BrokenCheckpoint, OSError):
                time = manifest.stat().st_mtime_ns
                if time >= newest_time and same(ours, checkpoint_files.config_of(manifest.parent), any_length):
                    newest = manifest.parent
                    newest_time = time
    return newest


def begins_anew(cfg: Config, folder: Path) -> list[str]:
    """A warning where resume=latest finds nothing in the folder to go on from, with a checkpoint that another folder
    has of the same training, of any length. folder: from `resume_folder`."""
    if cfg.resume != LATEST or checkpoint_files.in_run(folder):
        return []
    line = f"resume={LATEST} found no checkpoint of this training in {folder}: it begins at step 0."
    runs = [*Path("outputs").absolute().glob("*/*"), *folder.parent.glob("*")]
    other = _newest_of(cfg, runs, any_length=True)
    if other is None:
        return [line]
    line += f" {other} is of the same training"
    different = differences(to_dict(cfg), checkpoint_files.config_of(other))
    if different:
        line += f" but for {', '.join(different)}"
    step = checkpoint_files.step_of(other)
    return [printable(f"{line}: resume={other.parent.parent} goes on from step {step}.")]


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
    """Makes a resumed training save its model as the training before did, where nothing else is typed.

    Otherwise the folder would keep the model of the shorter training. outcome: the new record. before: the old one.
    Returns why the model cannot be saved so.
    """
    typed = {override.partition("=")[0] for override in outcome.overrides}
    if before is None or not before.config["save"]["final"] or "save.final" in typed:
        return []
    for key in ("final", "merge", "max_shard_gb"):
        if f"save.{key}" not in typed:
            value = before.config["save"][key]
            setattr(cfg.save, key, value)
            outcome.config["save"][key] = value
    return save.problems(cfg)


def damaged_record(cfg: Config, folder: Path) -> str | None:
    """A warning where a record cannot be read beside checkpoints of the training that is resumed; else None."""
    if cfg.resume is None:
        return None
    try:
        record_file.read(folder)
    except OSError:
        return None
    except ValueError as error:
        checkpoints = checkpoint_files.in_run(folder)
        of_another_training = mismatch_problems(cfg, checkpoints, any_length=cfg.resume != LATEST)
        if not of_another_training and any(_is_readable(checkpoint) for checkpoint in checkpoints):
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
    return not (missing and checkpoint_files.in_run(folder))


def keep_figures(before: record.Record | None, outcome: record.Record, folder: Path) -> bool:
    """Puts the speed and the memory of a finished run back into its record, after a run that only saved its model or
    counted its memory.

    before: the record of the finished run. outcome: that of the run after it. Returns whether the record has changed.
    """
    if before is None or before.status != "ok" or outcome.status != "ok":
        return False
    if not before.training.steps == outcome.training.steps == outcome.training.resumed_from_step:
        return False  # it has trained
    memory_was_counted = record.NOT_COUNTED not in before.warnings  # else there are figures of the steps alone
    for part, earlier in ((outcome.speed, before.speed), (outcome.memory, before.memory)):
        for key, value in vars(earlier).items():
            if memory_was_counted or isinstance(value, int | float):
                setattr(part, key, value)
    outcome.training.resumed_from_step = before.training.resumed_from_step  # these figures are of all its steps
    record_file.write(outcome, folder)
    return True


def model_missing(cfg: Config, folder: Path) -> bool:
    """Whether save.final asks for a model that was not saved yet, or save.merge for more than its adapter."""
    if not cfg.save.final:
        return False
    model = folder / run_folder.MODEL_FOLDER
    if not model.is_dir():
        return True
    return cfg.save.merge and (model / ADAPTER_FILE).is_file()


hooks.register_module("resume", globals())
