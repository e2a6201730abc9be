"""The whole run by the times of a short one (estimate.short_run): the same training, on the machine that will train."""

import numpy

from legroom import paths
from legroom.config import Config
from legroom.foresight.run_parts import ASSUMED, MEASURED, Part, Seconds
from legroom.foresight.run_schedule import RunSchedule
from legroom.foresight.step_fit import seconds_of
from legroom.options import short_run
from legroom.records.record import Record
from legroom.report.page import run_page

LEAST_ERROR = 0.05  # of a measured time, when it is measured again
COMMAND: Seconds = (1.0, 2.0, 5.0)  # until the command has started the job's process (2 s of an AMD EPYC)


def parts(cfg: Config, schedule: RunSchedule) -> list[Part]:
    """The parts of the whole run. Raises OSError and ValueError for a folder without the run's record."""
    folder = cfg.estimate.short_run
    assert folder is not None
    record = short_run.read(folder)
    speed = record.speed
    seconds = numpy.array(run_page.steps(paths.expanded(folder))["seconds"], dtype=float)
    warmup = min(speed.warmup_steps or 0, len(seconds) - 1)
    work = schedule.work[: len(seconds)]
    known = slice(warmup, len(work))
    fitted = seconds_of(schedule.work, work[known], seconds[known])
    fitted *= seconds[known].sum() / fitted[known].sum()  # the fit counts steps that were slowed down for less
    first = max(0.0, float((seconds[:warmup] - fitted[:warmup]).sum()))  # kernels and caches of the first steps
    error = _error(seconds[known] / fitted[known])

    def measured(name: str, count: int, middle: float) -> Part:
        return Part(name, count, (middle * (1 - error), middle, middle * (1 + error)), MEASURED)

    low, middle, high = COMMAND
    loading = speed.load_seconds or 0.0
    listed = [
        Part("start", 1, (low, middle, high), ASSUMED),
        measured("loading", 1, loading),
        measured("first steps", 1, first),
        measured("steps", schedule.steps, float(fitted.mean()) * schedule.steps),
    ]
    evaluation = record.evaluation
    if schedule.evaluations and evaluation is not None and evaluation.seconds is not None:
        listed.append(measured("evaluations", schedule.evaluations, schedule.evaluations * evaluation.seconds))
    listed += [measured(*part) for part in _saving(cfg, record, schedule)]
    if cfg.measure.ledger and speed.ledger_seconds is not None:
        listed.append(measured("counting memory", 1, speed.ledger_seconds))
    return listed


def _saving(cfg: Config, record: Record, schedule: RunSchedule) -> list[tuple[str, int, float]]:
    """(name, count, seconds) of what is written while the training runs and behind it."""
    lines = []
    every, before = cfg.save.every_steps, record.config["save"].get("every_steps")
    saved = record.training.steps // before if before else 0
    if every and saved and record.speed.save_seconds:
        count = schedule.steps // every
        lines.append(("checkpoints", count, count * record.speed.save_seconds / saved))
    if record.speed.model_save_seconds:
        lines.append(("saving the model", 1, record.speed.model_save_seconds))
    return lines


def _error(ratios: numpy.ndarray) -> float:
    """By how much the measured steps disagree: the second half of them and the first. ratios: to the fitted seconds."""
    half = len(ratios) // 2
    return max(LEAST_ERROR, abs(float(ratios[half:].mean() - ratios[:half].mean())))


def unmeasured(cfg: Config, schedule: RunSchedule, listed: list[Part]) -> list[str]:
    """What the whole run has and the short one had not, whose time is therefore missing: a sentence each."""
    names = {part.name for part in listed}
    lines = []
    if cfg.save.every_steps and "checkpoints" not in names:
        lines.append("checkpoints (save.every_steps)")
    if schedule.evaluations and "evaluations" not in names:
        lines.append("evaluations (eval.enabled)")
    if not lines:
        return []
    return [f"the short run had no {' and no '.join(lines)}: their time is not in that of the whole run."]
