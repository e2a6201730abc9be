"""objective: the number of a job's record that a sweeper such as Optuna's compares."""

import math
from collections.abc import Collection
from dataclasses import is_dataclass

from legroom import config
from legroom.config import Config
from legroom.options import hooks, suggestions
from legroom.records.record import Record

NUMBERS = (int, float)


def names() -> list[str]:
    """The numbers of a record: training.final_loss, evaluation.loss, ..."""
    parts = {part: config.node_types(kind) for part, kind in config.node_types(Record).items() if is_dataclass(kind)}
    return [f"{part}.{name}" for part, kinds in parts.items() for name, kind in kinds.items() if kind in NUMBERS]


def value(cfg: Config, outcome: Record) -> float:
    """The number that `objective` names in a record; NaN where the job has none, has not ended well or has diverged,
    which sweepers take for a failure: its first steps say nothing of all."""
    found: object = outcome if outcome.status == "ok" and not outcome.training.diverged else None
    for name in (cfg.objective or "").split("."):
        found = getattr(found, name, None)
    return float(found) if isinstance(found, (int, float)) else math.nan


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A number that no record has."""
    if cfg.objective is None or cfg.objective in names():
        return []
    near = suggestions.nearest(cfg.objective, names()) or f" There are {', '.join(names())}."
    return [f"objective={suggestions.shown(cfg.objective)}: a record has no such number.{near}"]


hooks.register_module("objective", globals())
