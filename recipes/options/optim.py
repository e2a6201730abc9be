"""recipes.options.optim"""

from __future__ import annotations

from recipes.machine import host


def arguments(cfg) -> dict:
    """Entries for TrainingArguments."""
    optim = cfg.optim
    entries = {
        "optim": optim.transformers_name,
        "adam_beta1": optim.beta1,
        "adam_beta2": optim.beta2,
        "adam_epsilon": optim.epsilon,
        "optim_args": f"momentum={optim.momentum}" if optim.momentum is not None else None,
    }
    return {key: value for key, value in entries.items() if value is not None}


def problems(cfg) -> list[str]:
    """Packages and hardware that the option needs."""
    name = cfg.optim.name
    if "8bit" not in cfg.optim.transformers_name:
        return []
    if not host.has("bitsandbytes"):
        return [f"optim={name} needs the package bitsandbytes: pip install bitsandbytes, or choose optim=adafactor."]
    if "paged" in cfg.optim.transformers_name and host.device(cfg) == "cpu":
        return [
            f"optim={name} pages its states between a GPU and the host; there is no GPU here. Choose optim=adam8bit."
        ]
    return []
