"""train.ema: a running mean of the weights, which is evaluated and saved in their place."""

from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks
from legroom.options.hooks import Conflict, Lever

INSTEAD = "Leave train.ema out."


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """An optimizer that averages the weights itself."""
    if cfg.train.ema is None or not cfg.optim.facts.needs_own_weights:
        return []
    return [f"train.ema={cfg.train.ema:g}: optim={cfg.optim.name} averages the weights itself. {INSTEAD}"]


def memory_levers(cfg: Config) -> list[Lever]:
    """Without the mean: 4 bytes a trained parameter. Another model is evaluated and saved then."""
    if cfg.train.ema is None:
        return []
    return [Lever("train.ema=null")]


CONFLICTS = (
    Conflict("train.ema", "optim.in_backward=true", ", which takes a step for each weight", INSTEAD),
    Conflict("train.ema", "parallelism=zero", ", whose optimizer has flat pieces of many weights", INSTEAD),
)

NOT_SEARCHED = "another model is evaluated and saved"


def chosen(cfg: Config) -> bool:
    return cfg.train.ema is not None


hooks.register_module("train.ema", globals())
