"""data.packing: when it is refused; models are checked where they are built."""

from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks, task
from legroom.options.hooks import Conflict

NOT_CAUSAL = (
    "data.packing=true is for causal language models, whose samples can be kept apart in a row; this configuration "
    "trains no such model. Type data.packing=false."
)


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Why samples cannot be packed."""
    if not cfg.data.packing:
        return []
    if not task.is_causal(cfg):
        return [NOT_CAUSAL]
    if cfg.predicts and cfg.model.flash_attention:
        return [
            f"recipe=estimate does not support data.packing=true with model.attention={cfg.model.attention}, which "
            "keeps no mask. Type model.attention=sdpa, which keeps one."
        ]
    return []


ONE_TEXT = ", which keeps texts apart: a window slides over one long text"
CONFLICTS = (
    Conflict("data.group_by_length=true", "data.packing=true", ", whose rows are about equally long"),
    Conflict("eval.window", "data.packing=true", ONE_TEXT),
    Conflict("eval.stride", "data.packing=true", ONE_TEXT),
    Conflict("parallelism.context", "data.packing=true", ": a sample may lie on several ranks"),
    Conflict("parallelism=pipeline", "data.packing=true", " yet"),
)

NOT_SEARCHED = "rows and batches of another kind: compare two estimates"


def chosen(cfg: Config) -> bool:
    return bool(cfg.data.packing)


hooks.register_module("data.packing", globals())
