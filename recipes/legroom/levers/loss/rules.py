"""loss: how a causal language model computes its loss from the hidden states of its last layer."""

from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks, task
from legroom.options.hooks import PASSES, Conflict, Cost, Dimension, Lever


def chosen(cfg: Config) -> bool:
    """Whether whole logits are avoided. A configuration of an older record has no such menu."""
    return cfg.loss.kind == "chunked"


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A model without a loss over tokens."""
    if not chosen(cfg) or task.is_causal(cfg):
        return []
    return [
        "loss=chunked is for causal language models, and this configuration trains no such model. "
        "Choose model=llama_tiny or another decoder, or loss=standard."
    ]


def memory_levers(cfg: Config) -> list[Lever]:
    """No whole logits and no whole gradient of them: for large vocabularies most of what the passes keep."""
    if chosen(cfg) or not task.is_causal(cfg):
        return []
    return [Lever("loss=chunked", Cost.NO_SPEED, (PASSES,))]


SHARDS = ": the whole output layer is needed while the loss is computed"
INSTEAD = "Choose parallelism=fsdp, parallelism=ddp, or loss=standard."
CONFLICTS = (
    Conflict("loss=chunked", "compile=true"),
    Conflict("loss=chunked", "parallelism=fsdp_tp", SHARDS, INSTEAD),
    Conflict("loss=chunked", "parallelism.stage=3", SHARDS, INSTEAD),
)

SEARCH = (Dimension("loss", 25),)
hooks.register_module("loss", globals())
