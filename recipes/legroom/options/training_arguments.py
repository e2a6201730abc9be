"""transformers.TrainingArguments of a configuration, for both recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from legroom.config import Config
from legroom.options import hooks

if TYPE_CHECKING:
    from transformers import TrainingArguments


def training_arguments(cfg: Config, folder: str) -> TrainingArguments:
    """The TrainingArguments of a job: the Trainer is built with them, the raw loop reads from them.

    folder: where the Trainer may write.
    """
    from transformers import TrainingArguments

    return TrainingArguments(**entries(cfg, folder))


def entries(cfg: Config, folder: str) -> dict[str, Any]:
    """The arguments of `training_arguments` by name. They come from the hooks; two menus cannot give the same entry."""
    arguments: dict[str, Any] = {
        "output_dir": folder,
        "report_to": [],
        "use_cpu": not cfg.target.on_gpu,
        "disable_tqdm": True,  # the parent shows the progress
        # The step log, the saver and the evaluation of this project do these, without a read from the device.
        "logging_strategy": "no",
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_nan_inf_filter": False,  # would read the loss from the device at every step
        "remove_unused_columns": False,
    }
    for section, contributed in hooks.registered().items():
        if contributed.training_arguments is None:
            continue
        new = contributed.training_arguments(cfg)
        repeated = arguments.keys() & new.keys()
        assert not repeated, f"{section} repeats {repeated}"
        arguments |= new
    return arguments
