"""batch: samples in one forward pass, the first thing to lower when memory runs out."""

from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks
from legroom.options.hooks import PASSES, Cost, Dimension, Lever

ACCUMULATION_OPTIONS = (2, 4, 8, 16)  # conf/accumulation has an option for each of these numbers of steps


def memory_levers(cfg: Config) -> list[Lever]:
    """Half the batch in twice the steps, so that the effective batch stays the same."""
    size = cfg.batch.per_device
    if size % 2 != 0 or cfg.parallelism.static_graph:  # a static graph is not supported with accumulation
        return []
    overrides = f"batch.per_device={size // 2}"
    if not cfg.batch.effective:
        steps = cfg.accumulation.steps * 2
        if steps in ACCUMULATION_OPTIONS:
            overrides += f" accumulation=x{steps}"
        else:
            overrides += f" accumulation.steps={steps}"
    return [Lever(overrides, Cost.SMALLER_BATCH, helps_in=(PASSES,))]


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A batch that is larger than the data, where the number of samples is known before the data is read."""
    count = cfg.data.samples
    if cfg.predicts or cfg.data.kind not in ("dummy", "source") or count is None:
        return []
    devices = cfg.parallelism.replicas or 1  # None: `resolve` has found a problem
    if count >= cfg.batch.per_device * devices:
        return []
    return [larger_than_data(cfg, count)]


def effective_batch(cfg: Config) -> int:
    """The samples of an optimizer step of all ranks."""
    return cfg.batch.per_device * cfg.accumulation.steps * (cfg.parallelism.replicas or 1)


def larger_than_data(cfg: Config, count: int, kind: str = "sample") -> str:
    """The message about a batch of more samples than there are. count: samples of that kind to train on."""
    size = cfg.batch.per_device
    devices = cfg.parallelism.replicas
    batch = f"batch.per_device={size}"
    if devices > 1:
        batch += f" on {devices} devices is a batch of {size * devices}"
    samples = f"{count:,} {kind}"
    if count != 1:
        samples += "s"
    largest = count // devices
    if largest > 0:
        instead = f"Type batch.per_device={largest} or less"
    else:
        instead = f"Choose at most {count} devices"
    return f"{batch}: larger than the data, which has {samples} to train on. {instead}, or give more data."


SEARCH = (Dimension("batch.per_device", 60),)
hooks.register_module("batch", globals())
