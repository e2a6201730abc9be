"""batch: samples in one forward pass, the first thing to lower when memory runs out."""

from __future__ import annotations

from recipes.config import Config
from recipes.options import hooks
from recipes.options.hooks import PASSES, Cost, Dimension, Lever


def memory_levers(cfg: Config) -> list[Lever]:
    """Half the batch in twice the steps; the effective batch stays the same where that can be."""
    size, steps = cfg.batch.per_device, cfg.accumulation.steps * 2
    if size < 2:
        return []
    levers = []
    if not cfg.parallelism.static_graph:  # not supported with accumulation
        overrides = f"batch.per_device={size // 2}"
        if not cfg.batch.effective and size % 2 == 0:
            overrides += f" accumulation=x{steps}" if steps in (2, 4, 8, 16) else f" accumulation.steps={steps}"
        levers.append(Lever(overrides, Cost.SMALLER_BATCH, helps_in=(PASSES,)))
    if size % 2 == 0:
        changes = {"batch.per_device": size // 2, "accumulation.steps": steps, "batch.effective": None}
        overrides = f"batch.per_device={size // 2} accumulation.steps={steps}"
        levers.append(Lever(overrides, helps_in=(PASSES,), changes=changes))
    return levers


HOOKS = hooks.register("batch", hooks.Hooks(memory_levers=memory_levers, search=(Dimension("batch.per_device", 60),)))
