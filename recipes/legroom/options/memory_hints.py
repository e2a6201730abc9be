"""What to change when memory runs out."""

from __future__ import annotations

from legroom.config import Config
from legroom.options import hooks
from legroom.options.hooks import Cost


def memory_hint(cfg: Config, phase: str = "") -> str:
    """A sentence with the levers against memory that the configuration does not use yet, the cheapest first.

    phase: where memory ran out. In the optimizer's step no activation is alive, so a lever that only makes activations
    smaller is not named.
    """
    levers = [lever for lever in hooks.memory_levers(cfg, phase) if lever.cost is not None]
    if not levers:
        return "No lever is left: choose a smaller model, or parallelism=fsdp over more GPUs."
    levers.sort(key=lambda lever: lever.cost or Cost.NO_SPEED)
    return "Try, the cheapest first: " + ", ".join(lever.overrides for lever in levers) + "."
