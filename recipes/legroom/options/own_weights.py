"""What of a command is a stand-in for somebody's own: sizes for pretrained weights, and random ids for rows."""

from collections.abc import Sequence

from legroom.config import Config
from legroom.options import known_models, task

RANDOM = "random weights: "  # how the warning begins, which stands first in a summary
WEIGHTS, ROWS = "YOUR_MODEL", "YOUR_ROWS"  # to be filled in by a person
OF_DUMMY = ("data", "data.samples", "data.eval_samples", "data.task")  # keys that other rows do not take as they are


def stands_in(cfg: Config) -> bool:
    """Whether the model has the sizes of one that is meant, and none of its weights: with an adapter, or of a published
    model."""
    return not cfg.model.pretrained and (cfg.adapter.is_used or bool(source(cfg)))


def source(cfg: Config) -> str:
    """The hub id of the model whose sizes are trained; '' for sizes of no published one."""
    return known_models.known().get(cfg.model.name, ("", ""))[1]


def warning(cfg: Config) -> list[str]:
    """That a training is beside random weights, in a line; none where nobody would take it for a fine-tuning."""
    tunes = cfg.adapter.is_used or task.has_conversations(cfg) or cfg.data.kind != "dummy"
    if cfg.predicts or not stands_in(cfg) or not tunes:
        return []
    published = source(cfg)
    sizes = f"the sizes of {published}" if published else "sizes of its own"
    what = (
        f"adapter={cfg.adapter.name} is trained beside them" if cfg.adapter.is_used else "they are trained from there"
    )
    ids = ", on random ids (data=dummy)" if cfg.data.kind == "dummy" else ""
    return [
        f"{RANDOM}model={cfg.model.name} has {sizes} and no weights of a trained model, and {what}{ids}: good for "
        f"memory and speed, and for nothing else. To fine-tune, type model.pretrained={published or WEIGHTS}."
    ]


def filled_in(overrides: Sequence[str], cfg: Config) -> list[str]:
    """The overrides of a training of pretrained weights on rows of one's own, in place of stand-ins.

    cfg: what they come to. What is typed of sizes stays: then the model is no published one, and stays too.
    """
    keys = {text.lstrip("+~").partition("=")[0] for text in overrides}
    resized = {key for key in keys if key.startswith("model.") and key not in ("model.attention", "model.dropout")}
    if not stands_in(cfg) or resized:
        return list(overrides)
    kept = [text for text in overrides if text.partition("=")[0] != "model"]
    made = [f"model.pretrained={source(cfg) or WEIGHTS}"]
    if cfg.data.kind == "dummy":
        kept = [text for text in kept if text.partition("=")[0] not in OF_DUMMY]
        talks = task.is_causal(cfg)
        made += ["data=chat", f"data.path={ROWS}.jsonl"] if talks else ["data=text", f"data.path={ROWS}.csv"]
    return [*made, *kept]
