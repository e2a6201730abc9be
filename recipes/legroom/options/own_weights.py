"""Stand-ins in a command: the sizes of a model for its pretrained weights, and random ids for a person's rows."""

from collections.abc import Sequence

from legroom.config import Config
from legroom.options import known_models, task

RANDOM = "random weights: "  # how the warning begins, which stands first in a summary
WEIGHTS, ROWS = "YOUR_MODEL", "YOUR_ROWS"  # to be filled in by a person
OF_DUMMY = ("data", "data.samples", "data.eval_samples", "data.task")  # keys that other rows do not take as they are


def stands_in(cfg: Config) -> bool:
    """Whether random weights stand in for pretrained ones: under an adapter, or in the sizes of a published model."""
    if cfg.model.pretrained:
        return False
    return cfg.adapter.is_used or source(cfg) != ""


def source(cfg: Config) -> str:
    """The hub id of the model whose sizes are trained; '' for sizes of no published one."""
    _, hub_id = known_models.known().get(cfg.model.name, ("", ""))
    return hub_id


def warning(cfg: Config) -> list[str]:
    """A line where a training that looks like a fine-tuning starts from random weights."""
    looks_like_fine_tuning = cfg.adapter.is_used or task.has_conversations(cfg) or cfg.data.kind != "dummy"
    if cfg.predicts or not stands_in(cfg) or not looks_like_fine_tuning:
        return []
    published = source(cfg)
    sizes = f"the sizes of {published}" if published else "sizes of its own"
    if cfg.adapter.is_used:
        what = f"adapter={cfg.adapter.name} is trained beside them"
    else:
        what = "they are trained from there"
    ids = ", on random ids (data=dummy)" if cfg.data.kind == "dummy" else ""
    return [
        f"{RANDOM}model={cfg.model.name} has {sizes} and no weights of a trained model, and {what}{ids}: good for "
        f"memory and speed, and for nothing else. To fine-tune, type model.pretrained={published or WEIGHTS}."
    ]


def filled_in(overrides: Sequence[str], cfg: Config) -> list[str]:
    """The overrides of a training of pretrained weights on a person's rows, in place of stand-ins.

    cfg: the configuration of these overrides. Where a size is typed, the model is no published one, and nothing is
    replaced.
    """
    if not stands_in(cfg):
        return list(overrides)
    replaced = {"model"}
    filled = [f"model.pretrained={source(cfg) or WEIGHTS}"]
    if cfg.data.kind == "dummy":
        replaced.update(OF_DUMMY)
        if task.is_causal(cfg):
            filled += ["data=chat", f"data.path={ROWS}.jsonl"]
        else:
            filled += ["data=text", f"data.path={ROWS}.csv"]
    for text in overrides:
        key = text.partition("=")[0]
        plain = key.lstrip("+~")
        if plain.startswith("model.") and plain not in ("model.attention", "model.dropout"):
            return list(overrides)
        if key not in replaced:
            filled.append(text)
    return filled
