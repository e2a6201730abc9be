"""batch: samples in one forward pass, the first thing to lower when memory runs out."""

from __future__ import annotations

from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks
from legroom.options.hooks import PASSES, Cost, Dimension, Lever


def memory_levers(cfg: Config) -> list[Lever]:
    """Half the batch in twice the steps, so that the effective batch stays the same."""
    size, steps = cfg.batch.per_device, cfg.accumulation.steps * 2
    if size % 2 or cfg.parallelism.static_graph:  # which is not supported with accumulation
        return []
    overrides = f"batch.per_device={size // 2}"
    if not cfg.batch.effective:
        overrides += f" accumulation=x{steps}" if steps in (2, 4, 8, 16) else f" accumulation.steps={steps}"
    return [Lever(overrides, Cost.SMALLER_BATCH, helps_in=(PASSES,))]


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A batch that is larger than the data, where the number of samples is known before the data is read."""
    count, devices = cfg.data.samples, cfg.parallelism.replicas or 1  # None: `resolve` has found a problem
    if cfg.recipe.name == "estimate" or cfg.data.name not in ("dummy", "source") or count is None:
        return []
    return [larger_than_data(cfg, count)] if count < cfg.batch.per_device * devices else []


def larger_than_data(cfg: Config, count: int) -> str:
    """What is wrong with a batch of more samples than there are. count: samples to train on."""
    size, devices = cfg.batch.per_device, cfg.parallelism.replicas
    asked = f"batch.per_device={size}" + (
        f" on {devices} devices is a batch of {size * devices}" if devices > 1 else ""
    )
    most = count // devices
    smaller = f"Type batch.per_device={most} or less" if most else f"Choose at most {count} devices"
    samples = f"{count:,} {'row' if cfg.data.packing else 'sample'}{'s' * (count != 1)}"
    samples += " of packed samples" * bool(cfg.data.packing)
    return f"{asked}: larger than the data, which has {samples} to train on. {smaller}, or give more data."


HOOKS = hooks.register(
    "batch", hooks.Hooks(problems=problems, memory_levers=memory_levers, search=(Dimension("batch.per_device", 60),))
)
