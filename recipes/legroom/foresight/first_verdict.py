"""The first verdict of an estimate: on the longest rows, before other lengths and the evaluation are simulated."""

from legroom import units
from legroom.config import Config
from legroom.estimator import verdict
from legroom.estimator.memory import allocator
from legroom.estimator.memory.settings import limits_of
from legroom.estimator.speed import roofline
from legroom.estimator.speed.operations import Tally
from legroom.foresight import prediction


def text(cfg: Config, events: list[allocator.Request], tally: Tally | None) -> str:
    """A line about a step; '' on a CPU, where nothing is judged. tally: None where its time is not known yet."""
    if cfg.target.gpu is None or not events:
        return ""
    limits = limits_of(prediction.allocator_bytes(cfg), cfg.gpu.memory_bytes)
    demand = allocator.replay(events, limits.capacity_bytes, limits.settings)
    left = -demand.missing_bytes or limits.capacity_bytes - demand.peak_reserved_bytes
    judged = verdict.judge(left, demand.peak_reserved_bytes, cfg.estimate.margin or 0.0)
    memory = (
        f"{units.size(abs(left))} {'are missing' if left < 0 else 'stay free'} of {units.size(cfg.gpu.memory_bytes)}"
    )
    line = f"first verdict, of a step on the longest rows: {judged.word}, {memory}"
    if tally is not None and not cfg.parallelism.steps_on_host:
        seconds = roofline.predict(tally, cfg.gpu, cfg.precision.timed_as, cfg.parallelism.world_size).step_seconds
        line += f", about {units.two_digits(seconds * 1000)} ms"
    return f"{line}. The rest follows."
