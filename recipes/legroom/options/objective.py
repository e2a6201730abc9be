"""objective: the number of a job's record that a sweeper such as Optuna's compares."""

import math
from collections.abc import Collection
from dataclasses import is_dataclass

from legroom import config, suggestions
from legroom.config import Config
from legroom.options import hooks
from legroom.records.record import Record

NUMBERS = (int, float)


def names() -> list[str]:
    """The numbers of a record: training.final_loss, evaluation.loss, ..."""
    numbers = []
    for part, kind in config.node_types(Record).items():
        if not is_dataclass(kind):
            continue
        for name, value_kind in config.node_types(kind).items():  # pyright: ignore[reportArgumentType]  # a class
            if value_kind in NUMBERS:
                numbers.append(f"{part}.{name}")
    return numbers


def value(cfg: Config, outcome: Record) -> float:
    """The number that `objective` names in a record.

    NaN, which sweepers take for a failure, where the job has no such number, has not ended well or has diverged: its
    first steps say nothing of the whole.
    """
    if cfg.objective is None or outcome.status != "ok" or outcome.training.diverged:
        return math.nan
    number: object = outcome
    for name in cfg.objective.split("."):
        number = getattr(number, name, None)
    if isinstance(number, NUMBERS):
        return float(number)
    return math.nan


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A number that no record has."""
    if cfg.objective is None or cfg.objective in names():
        return []
    advice = suggestions.nearest(cfg.objective, names())
    if not advice:
        advice = f" There are {', '.join(names())}."
    return [f"objective={suggestions.shown(cfg.objective)}: a record has no such number.{advice}"]


hooks.register_module("objective", globals())
