"""objective: the number of a job's record that a sweeper such as Optuna's compares."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Collection, Iterator
from typing import Any

from legroom.config import Config
from legroom.options import hooks, suggestions
from legroom.records.record import Record


def names() -> list[str]:
    """The numbers of a record: training.final_loss, evaluation.loss, ..."""
    return list(_numbers(Record, ""))


def _numbers(cls: Any, prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        kinds = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
        part = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        if part is not None:
            yield from _numbers(part, f"{prefix}{field.name}.")
        elif prefix and kinds & {int, float}:
            yield prefix + field.name


def value(cfg: Config, outcome: Record) -> float:
    """The number that `objective` names in a record; NaN where the job has none, which sweepers take for a failure."""
    found: object = outcome
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
