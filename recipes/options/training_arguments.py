"""recipes.options.training_arguments"""

from __future__ import annotations

from recipes.machine import host
from recipes.options.validate import modules


def training_arguments(cfg, folder: str):
    """TrainingArguments for a job: the Trainer gets them whole, the raw loop reads from them.

    Every module of a menu gives its entries; two menus may not claim the same one.
    """
    from transformers import TrainingArguments

    entries = {
        "output_dir": folder,
        "report_to": [],
        "use_cpu": host.device(cfg) == "cpu",
        "disable_tqdm": True,  # the parent draws the bar
        # Our journal logs, saves and evaluates, so the Trainer has no reason to touch the device for it.
        "logging_strategy": "no",
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_nan_inf_filter": False,  # would read the loss back at every step
        "remove_unused_columns": False,
    }
    for module in modules():
        if hasattr(module, "arguments"):
            new = module.arguments(cfg)
            assert not entries.keys() & new.keys(), f"{module.__name__} claims {entries.keys() & new.keys()}"
            entries |= new
    return TrainingArguments(**entries)
