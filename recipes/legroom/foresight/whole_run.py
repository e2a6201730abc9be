"""What a whole training takes, in time and money: from the start of its process to its end, by part.

The steps and the evaluations are predicted, each by the lengths of its rows; how long the rows take to be prepared is
measured here; the start of the process and the disk are assumed (`run_parts`), and the record says so.
"""

import numpy

from legroom.config import Config
from legroom.estimator.speed.roofline import Prediction
from legroom.foresight import run_parts, short_run
from legroom.foresight.run_parts import ASSUMED, MEASURED, PREDICTED, Part, Seconds
from legroom.foresight.run_schedule import RunSchedule
from legroom.foresight.step_fit import seconds_of
from legroom.records.record import Record

PREPARED_ELSEWHERE = (0.5, 1.0, 2.0)  # the time that rows take elsewhere, over that on this machine
WEIGHT_BYTES = 2  # of a parameter in a checkpoint of published weights
LEDGER = (1.0, 2.0, 5.0)  # the extra step that counts memory, over one on the longest rows


def fill(
    cfg: Config,
    outcome: Record,
    schedule: RunSchedule,
    steps: list[Prediction],
    evaluation: tuple[numpy.ndarray, Prediction] | None,
) -> None:
    """Enter the whole run into a record.

    steps: of the steps in `schedule.simulated`. evaluation: (the work of the batches that were simulated, their time).
    """
    outcome.lengths = schedule.lengths
    if not is_known(cfg, outcome):
        return
    if cfg.estimate.short_run is not None:
        _enter(cfg, outcome, schedule, short_run.parts(cfg, schedule))
        return
    parts = [
        run_parts.start(),
        _data(schedule),
        _weights(outcome),
        _steps(schedule, steps),
    ]
    if evaluation is not None and schedule.evaluation is not None:
        parts.append(_evaluations(schedule, *evaluation))
    parts += _saving(cfg, outcome, schedule)
    if cfg.measure.ledger:
        longest = (steps[0].low_seconds, steps[0].step_seconds, steps[0].high_seconds)
        parts.append(Part("counting memory", 1, _times(LEDGER, longest), ASSUMED))
    _enter(cfg, outcome, schedule, parts)


def fill_measured(cfg: Config, outcome: Record, schedule: RunSchedule) -> None:
    """Enter the whole run into the record of a device whose steps are not predicted, by the times of a short run."""
    outcome.lengths = schedule.lengths
    if cfg.estimate.short_run is not None and is_known(cfg, outcome):
        _enter(cfg, outcome, schedule, short_run.parts(cfg, schedule))


def _enter(cfg: Config, outcome: Record, schedule: RunSchedule, parts: list[Part]) -> None:
    """Enter the sum of the parts."""
    run = run_parts.sum_of(parts, schedule.steps, gpus(cfg), cfg.gpu.price_per_hour)
    run.epochs, run.rows = schedule.epochs, schedule.rows
    outcome.whole_run = run
    if cfg.estimate.short_run is not None:
        outcome.warnings += short_run.unmeasured(cfg, schedule, parts)


def is_known(cfg: Config, outcome: Record) -> bool:
    """Whether a person has said how long the training is: by rows of their own, steps or epochs. Random rows, and rows
    that stand in for some that are not there, say nothing."""
    if cfg.train.max_steps is not None:
        return True
    if cfg.data.kind != "dummy" and outcome.lengths is not None and outcome.lengths.from_rows:
        return True
    typed = {text.lstrip("+").partition("=")[0] for text in outcome.overrides}
    if "data.samples" in typed:
        return True
    return cfg.data.kind == "dummy" and "train.epochs" in typed


def gpus(cfg: Config) -> int:
    """GPUs whose time is paid for."""
    return max(1, cfg.parallelism.world_size)


# --- the parts -----------------------------------------------------------------------------------------


def _times(factors: Seconds, seconds: Seconds) -> Seconds:
    low, middle, high = (factor * each for factor, each in zip(factors, seconds))
    return low, middle, high


def _data(schedule: RunSchedule) -> Part:
    """Reading the rows and turning them into tokens, which the estimate has done as well."""
    here = schedule.data_seconds
    return Part("preparing rows", 1, _times(PREPARED_ELSEWHERE, (here, here, here)), MEASURED)


def _weights(outcome: Record) -> Part:
    """Reading the weights from a disk."""
    size = (outcome.memory.parameter_count or 0) * WEIGHT_BYTES
    return Part("loading weights", 1, run_parts.disk_seconds(size), ASSUMED)


def _steps(schedule: RunSchedule, predictions: list[Prediction]) -> Part:
    """The optimizer steps, each by the lengths of its rows."""
    middle = [each.step_seconds for each in predictions]
    low = sum(each.low_seconds for each in predictions) / sum(middle)
    high = sum(each.high_seconds for each in predictions) / sum(middle)
    of_steps = seconds_of(schedule.work, schedule.simulated, numpy.array(middle))
    seconds = float(of_steps.mean()) * schedule.steps
    return Part("steps", schedule.steps, (low * seconds, seconds, high * seconds), PREDICTED)


def _evaluations(schedule: RunSchedule, simulated: numpy.ndarray, predicted: Prediction) -> Part:
    """All evaluations. simulated: (3,), the work of the batches whose time was predicted, the longest."""
    assert schedule.evaluation is not None
    batches, positions, _ = (schedule.evaluation / simulated).tolist()
    # The device's time goes with the positions, and the host's with the batches.
    device = positions * predicted.device_seconds
    host = batches * predicted.host_seconds
    seconds = schedule.evaluations * max(device, host)
    low = predicted.low_seconds / predicted.step_seconds
    high = predicted.high_seconds / predicted.step_seconds
    return Part("evaluations", schedule.evaluations, (low * seconds, seconds, high * seconds), PREDICTED)


def _saving(cfg: Config, outcome: Record, schedule: RunSchedule) -> list[Part]:
    """Checkpoints while the training runs, and the model behind it."""
    model, memory = outcome.model, outcome.memory
    everything = memory.parameter_count or 0
    trained = everything
    if model is not None and model.trained_parameters is not None:
        trained = model.trained_parameters
    weight_bytes = 4 if cfg.precision.weights_dtype == "float32" else 2
    parts = []
    if cfg.save.every_steps:
        count = schedule.steps // cfg.save.every_steps
        shards = gpus(cfg) if cfg.parallelism.sharded else 1
        size = trained * weight_bytes + shards * (memory.optimizer_bytes or 0)
        parts.append(Part("checkpoints", count, run_parts.disk_seconds(count * size), ASSUMED))
    if cfg.save.final:
        saved = everything if cfg.save.merge else trained
        parts.append(Part("saving the model", 1, run_parts.disk_seconds(saved * weight_bytes), ASSUMED))
    return parts
