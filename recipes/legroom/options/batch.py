"""batch: samples in one forward pass, the first thing to lower when memory runs out."""

import re
from collections.abc import Collection
from pathlib import Path

from legroom import yaml_table
from legroom.config import Config
from legroom.options import hooks, menus
from legroom.options.hooks import PASSES, Cost, Dimension, Lever

EXPERIMENT = re.compile(r"\+{1,2}(experiment(?:/\w+)*)=(\w+)")


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
    if cfg.predicts or cfg.data.kind not in ("dummy", "source") or count is None:
        return []
    return [larger_than_data(cfg, count)] if count < cfg.batch.per_device * devices else []


def larger_than_data(cfg: Config, count: int, kind: str = "sample") -> str:
    """What is wrong with a batch of more samples than there are. count: samples of that kind to train on."""
    size, devices = cfg.batch.per_device, cfg.parallelism.replicas
    asked = f"batch.per_device={size}" + (
        f" on {devices} devices is a batch of {size * devices}" if devices > 1 else ""
    )
    most = count // devices
    smaller = f"Type batch.per_device={most} or less" if most else f"Choose at most {count} devices"
    samples = f"{count:,} {kind}{'s' * (count != 1)}"
    return f"{asked}: larger than the data, which has {samples} to train on. {smaller}, or give more data."


def rate_advice(cfg: Config, overrides: list[str], folders: list[Path]) -> list[str]:
    """What the two usual rules make of the learning rate where a job takes another effective batch than its experiment.

    Linear scaling is Goyal et al.'s (arXiv:1706.02677), for SGD; the square root Malladi et al.'s (arXiv:2205.10287),
    for Adam. overrides: as typed. folders: where Hydra looked for menus. Nothing is said where a rate was typed.
    """
    named = [match for each in overrides if (match := EXPERIMENT.fullmatch(each))]
    typed = any(each.lstrip("+").startswith("train.learning_rate=") for each in overrides)
    file = menus.options(named[0][1], folders).get(named[0][2]) if len(named) == 1 else None
    rate, mode = cfg.train.learning_rate, cfg.parallelism
    if typed or not rate or mode.kind == "dp" or cfg.predicts or file is None:
        return []
    values = yaml_table.read(file)
    chosen = {
        menu: name for each in values.get("defaults", []) if isinstance(each, dict) for menu, name in each.items()
    }
    accumulation = menus.option_values("accumulation", chosen.get("override /accumulation", "none"), folders)
    accumulation |= values.get("accumulation", {})
    size, ranks = values.get("batch", {}).get("per_device"), values.get("parallelism", {}).get("num_processes", 1)
    before = (size or 0) * accumulation["steps"] * ranks
    now = cfg.batch.per_device * cfg.accumulation.steps * (mode.replicas or 1)
    if before in (0, now):
        return []
    times = now / before
    warmup = f", and train.warmup_steps={cfg.train.warmup_steps} by {cfg.train.warmup_steps / times:.0f}"
    return [
        f"{named[0][0]} takes {before} samples a step, and this job {now}: linear scaling would replace "
        f"train.learning_rate={rate:g} by {rate * times:.3g}, square-root scaling by {rate * times**0.5:.3g}"
        f"{warmup * bool(cfg.train.warmup_steps)}. It is not changed."
    ]


SEARCH = (Dimension("batch.per_device", 60),)
hooks.register_module("batch", globals())
