"""What is said of a model whose step the fake device cannot follow: how else to come by its figures."""

from __future__ import annotations

from legroom.config import Config
from legroom.errors import Refusal, UnknownOperation


def reason(cfg: Config, error: Refusal | UnknownOperation) -> str:
    """Why a configuration is not estimated, in a line, with what to type instead."""
    if isinstance(error, Refusal):
        return str(error)
    operation = str(error).partition(": ")[0]  # without what torch says of it; file:line of the reader stays whole
    return (
        f"recipe=estimate cannot follow the step of {cfg.model.name}: {operation}. Train a few steps instead "
        f"(train.max_steps=5); the record has the same figures, measured."
    )
