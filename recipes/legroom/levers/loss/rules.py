"""loss: how a causal language model computes its loss from the hidden states of its last layer."""

from __future__ import annotations

from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks, task
from legroom.options.hooks import PASSES, Conflict, Cost, Dimension, Lever


def is_chunked(cfg: Config) -> bool:
    """Whether whole logits are avoided. A configuration of an older record has no such menu."""
    return cfg.loss.name == "chunked"


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """What does not go with a loss in chunks."""
    if not is_chunked(cfg):
        return []
    found = []
    if task.task(cfg) == "classification":
        found.append(
            "loss=chunked is for language models; this configuration trains a classifier, which has a few logits a "
            "row. Choose model=llama_tiny or another decoder, or loss=standard."
        )
    if _shards_its_output_layer(cfg):
        stage = " with parallelism.stage=3" if cfg.parallelism.name == "zero" else ""
        found.append(
            "loss=chunked needs the whole output layer while the loss is computed, which "
            f"parallelism={cfg.parallelism.name}{stage} does not keep. Choose parallelism=fsdp, parallelism=ddp, or "
            "loss=standard."
        )
    return found


def _shards_its_output_layer(cfg: Config) -> bool:
    return cfg.parallelism.name == "fsdp_tp" or (cfg.parallelism.name == "zero" and cfg.parallelism.stage == 3)


def memory_levers(cfg: Config) -> list[Lever]:
    """No whole logits and no whole gradient of them: for large vocabularies most of what the passes keep."""
    if (
        is_chunked(cfg)
        or not hooks.is_possible(cfg, "loss=chunked")
        or _shards_its_output_layer(cfg)
        or task.task(cfg) == "classification"
    ):
        return []
    return [Lever("loss=chunked", Cost.NO_SPEED, (PASSES,))]


CONFLICTS = (Conflict("loss=chunked", "compile=true", "", "Leave one of them out."),)

HOOKS = hooks.register(
    "loss",
    hooks.Hooks(
        problems=problems,
        conflicts=CONFLICTS,
        apply=__package__,
        chosen=is_chunked,
        memory_levers=memory_levers,
        search=(Dimension("loss", 25),),
    ),
)
