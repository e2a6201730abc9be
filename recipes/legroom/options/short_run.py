"""estimate.short_run: a run of a few steps, by whose times an estimate says how long the whole run takes."""

from legroom import paths
from legroom.config import Config, to_dict
from legroom.options import resume
from legroom.records import record_file
from legroom.records.record import Record

LEAST_STEPS = 5  # behind the warm-up


def read(folder: str) -> Record:
    """The record of a short run. Raises OSError and ValueError."""
    return record_file.read(paths.expanded(folder))


def problems(cfg: Config) -> list[str]:
    """Why the run in estimate.short_run does not say how long this training takes."""
    folder = cfg.estimate.short_run
    if folder is None:
        return []
    try:
        record = read(folder)
    except (OSError, ValueError) as error:
        return [
            f"estimate.short_run={folder}: there is no record of a run ({error}). Name the folder of its result.json."
        ]
    measured = record.speed.measured_steps or 0
    if record.status != "ok" or record.recipe == "estimate" or measured < LEAST_STEPS or not record.speed.load_seconds:
        return [
            f"estimate.short_run={folder} is no run that ended well and measured {LEAST_STEPS} steps. Train "
            f"{cfg.measure.warmup_steps + 2 * LEAST_STEPS} steps: the same command with train.max_steps="
            f"{cfg.measure.warmup_steps + 2 * LEAST_STEPS} and without recipe=estimate."
        ]
    try:
        differences = resume.differences(to_dict(cfg), record.config, any_length=True)
    except (KeyError, TypeError, AttributeError):
        differences = ["its record is of another version"]
    differences = [line for line in differences if not line.startswith(NOT_COMPARED)]
    if differences:
        return [f"estimate.short_run={folder} is another training: {'; '.join(differences)}. Type the same for both."]
    return []


NOT_COMPARED = ("recipe.", "gpu.", "estimate.", "parallelism.replicas", "save.", "eval.")  # keys, as they begin
