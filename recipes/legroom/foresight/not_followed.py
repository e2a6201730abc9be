"""What is said of a model whose step the fake device cannot follow: how else to come by its figures."""

from legroom import paths
from legroom.config import Config
from legroom.errors import Refusal, UnknownOperation
from legroom.models import architectures, builder
from legroom.options import task


def reason(cfg: Config, error: Refusal | UnknownOperation) -> str:
    """Why a configuration is not estimated, in a line, with what to type instead."""
    if isinstance(error, Refusal):
        return str(error)
    operation = str(error).partition(": ")[0]  # without what torch says of it; file:line of the reader stays whole
    return (
        f"recipe=estimate cannot follow the step of {cfg.model.name}: {operation}. Train a few steps instead "
        f"(train.max_steps=5); the record has the same figures, measured.{_without_weights(cfg)}"
    )


def _without_weights(cfg: Config) -> str:
    """What a training needs beside config.json, where the folder of the model has nothing else."""
    folder = paths.expanded(cfg.model.pretrained or "")
    if cfg.model.pretrained is None or not folder.is_dir() or any(folder.glob("*.safetensors")):
        return ""
    kind = architectures.AUTO_CLASSES[task.task_of(cfg, builder.configuration(cfg))]
    return (
        " A training needs weights beside config.json, of any values: transformers' "
        f"{kind.__name__}.from_config(config).save_pretrained(FOLDER) writes random ones."
    )
