"""gpu: the figures of GPUs, from the menu. One source for predictions and for MFU's denominator."""

from __future__ import annotations

from recipes import config
from recipes.machine import gpu_specs, host

# --- hooks of validate.py ---------------------------------------------------------------------


def resolve(cfg) -> list[str]:
    """gpu=auto of an estimate becomes the GPU at hand. Returns what stands in the way of it."""
    if cfg.recipe.name != "estimate" or cfg.gpu.name != "auto" or cfg.device == "cpu":
        return []
    if not host.gpus():
        return [f"recipe=estimate has no GPU here to predict for: say which, gpu={gpu_specs.names()}."]
    here = host.gpus()[0]
    figures = gpu_specs.find(here.name, here.memory_bytes)
    if figures is None:
        return [f"gpu=auto: there are no figures of {here.name}. Choose a GPU near to it, gpu={gpu_specs.names()}."]
    told = figures | {
        "name": "auto",
        "device_name": here.name,
        "memory_bytes": here.memory_bytes,
        "capability": ".".join(map(str, here.capability)),
    }
    cfg.gpu = config.from_dict(told, config.Gpu)
    return []


def problems(cfg) -> list[str]:
    """A run takes the GPU at hand, whatever stands in the menu: a command from fit, which names it, may run there."""
    if (
        cfg.gpu.name == "auto"
        or cfg.recipe.name != "estimate"
        and cfg.device != "cpu"
        and gpu_specs.is_installed(cfg.gpu.name)
    ):
        return []
    if cfg.recipe.name == "estimate":
        return (
            [
                f"device=cpu asks for the tensors of a run on a CPU, and gpu={cfg.gpu.name} for those on a GPU. Leave "
                "one of them out."
            ]
            if cfg.device == "cpu"
            else []
        )
    return [
        f"gpu={cfg.gpu.name} belongs to recipe=estimate, which predicts; recipe={cfg.recipe.name} trains on the "
        "GPU at hand. Add recipe=estimate, or leave gpu= out."
    ]
