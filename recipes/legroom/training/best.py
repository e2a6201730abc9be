"""eval.patience and save.best: which of the evaluations between steps was the best so far.

They are read from the step log, whose rows a checkpoint keeps, so a resumed training knows those before it.
"""

from typing import Any

LOWER_IS_BETTER = "loss"  # of all other metrics more is better


def best(rows: list[dict[str, Any]], metric: str) -> dict[str, Any] | None:
    """The first of the rows with the best value; None where no row has one. rows: of `StepLog.evaluations`."""
    chosen = None
    for row in rows:
        value = row.get(f"evaluation_{metric}")  # None: not a finite number
        if value is not None and (chosen is None or _is_better(value, chosen[f"evaluation_{metric}"], metric)):
            chosen = row
    return chosen


def _is_better(value: float, other: float, metric: str) -> bool:
    return value < other if metric == LOWER_IS_BETTER else value > other


def evaluations_since_best(rows: list[dict[str, Any]], metric: str) -> int:
    """How many of the rows come after the best one; all, where no row has a value."""
    chosen = best(rows, metric)
    if chosen is None:
        return len(rows)
    return len(rows) - 1 - rows.index(chosen)
