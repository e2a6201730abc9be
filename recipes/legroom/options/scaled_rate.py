"""What another batch than that of a named experiment would make of the learning rate, by the two usual rules.

Linear scaling is Goyal et al.'s (arXiv:1706.02677), for SGD; the square root Malladi et al.'s (arXiv:2205.10287), for
Adam.
"""

import math
import re
from pathlib import Path
from typing import Any

from legroom import yaml_table
from legroom.config import Config
from legroom.options import menus
from legroom.options.batch import effective_batch

EXPERIMENT = re.compile(r"\+{1,2}(experiment(?:/\w+)*)=(\w+)")


def advice(cfg: Config, overrides: list[str], folders: list[Path]) -> list[str]:
    """A line where a job takes another effective batch than its experiment, and no learning rate was typed.

    overrides: as typed. folders: where Hydra looked for menus. The rate itself is not changed.
    """
    rate = cfg.train.learning_rate
    rate_is_typed = any(text.lstrip("+").startswith("train.learning_rate=") for text in overrides)
    if not rate or rate_is_typed or cfg.predicts or cfg.parallelism.kind == "dp":
        return []
    named = [match for text in overrides if (match := EXPERIMENT.fullmatch(text))]
    if len(named) != 1:
        return []
    override, group, option = named[0].group(0, 1, 2)
    file = menus.options(group, folders).get(option)
    if file is None:
        return []
    before = _of_experiment(yaml_table.read(file), folders)
    now = effective_batch(cfg)
    if before in (None, now):
        return []
    times = now / before
    rules = (
        f"linear scaling would replace train.learning_rate={rate:g} by {rate * times:.3g}, square-root scaling by "
        f"{rate * math.sqrt(times):.3g}"
    )
    if cfg.train.warmup_steps:
        rules += f", and train.warmup_steps={cfg.train.warmup_steps} by {cfg.train.warmup_steps / times:.0f}"
    return [f"{override} takes {before} samples a step, and this job {now}: {rules}. It is not changed."]


def _of_experiment(experiment: dict[str, Any], folders: list[Path]) -> int | None:
    """The samples of an optimizer step of an experiment; None where it does not say its batch."""
    batch = experiment.get("batch", {})
    if batch.get("effective") is not None:
        return batch["effective"]
    size = batch.get("per_device")
    if size is None:
        return None
    option = "none"
    for default in experiment.get("defaults", []):
        if isinstance(default, dict):
            option = default.get("override /accumulation", option)
    accumulation = menus.option_values("accumulation", option, folders) | experiment.get("accumulation", {})
    ranks = experiment.get("parallelism", {}).get("num_processes", 1)
    return size * accumulation["steps"] * ranks
