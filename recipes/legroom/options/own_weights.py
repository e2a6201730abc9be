"""Stand-ins in a command: the sizes of a model for its pretrained weights, and random ids for a person's rows."""

from collections.abc import Sequence

from legroom import paths
from legroom.config import Config
from legroom.options import data, known_models, menus, model_families, model_names, task

RANDOM = "random weights: "  # how the warning begins, which stands first in a summary
WEIGHTS, ROWS = "YOUR_MODEL", "YOUR_ROWS"  # to be filled in by a person
NOT_SIZES = ("model.pretrained", "model.attention", "model.dropout", "model.classes")
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
    keys = [text.partition("=")[0].lstrip("+~") for text in overrides]
    if any(key.startswith("model.") and key not in NOT_SIZES for key in keys):
        return list(overrides)
    replaced, filled = set(), []
    if stands_in(cfg):
        replaced.add("model")
        filled.append(f"model.pretrained={source(cfg) or WEIGHTS}")
    if cfg.data.kind == "dummy" and (filled or cfg.model.pretrained):
        replaced.update(OF_DUMMY)
        filled += ["data=chat" if _is_decoder(cfg) else "data=text", f"data.path={_rows(cfg)}"]
    elif data.are_to_be_named(cfg):
        filled.append(f"data.path={_rows(cfg)}")
    return filled + [text for text in overrides if text.partition("=")[0] not in replaced]


def _is_decoder(cfg: Config) -> bool:
    """Whether the next token is predicted; of pretrained weights, whether their known family does that."""
    if not cfg.model.pretrained or task.task(cfg) is not None:
        return task.is_causal(cfg)
    option = model_names.option(cfg.model.pretrained)
    if option is None:
        return True
    return menus.option_values("model", option, [paths.CONF])["family"] not in model_families.ENCODERS


def _rows(cfg: Config) -> str:
    """A file to be filled in, of a kind that has what is trained on."""
    if task.has_conversations(cfg) or (cfg.data.kind == "dummy" and _is_decoder(cfg)):
        return f"{ROWS}.jsonl"
    if task.task(cfg) in task.OF_TOKENS:
        return f"{ROWS}.txt"
    return f"{ROWS}.csv"
