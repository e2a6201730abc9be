"""gpu: the figures of GPUs, from the menu. One source for predictions and for MFU's denominator."""

from __future__ import annotations

from collections.abc import Collection

from recipes import config
from recipes.config import Config
from recipes.machine import gpu_specs, host
from recipes.options import hooks


def resolve(cfg: Config) -> list[str]:
    """Replaces gpu=auto of an estimate by the installed GPU. Returns what prevents it."""
    if cfg.recipe.name != "estimate" or cfg.gpu.name != "auto" or cfg.device == "cpu":
        return []
    if not host.gpus():
        return [f"recipe=estimate: there is no GPU here to predict for. Choose one, gpu={gpu_specs.names()}."]
    here = host.gpus()[0]
    figures = gpu_specs.find(here.name, here.memory_bytes)
    if figures is None:
        return [f"gpu=auto: there are no figures of {here.name}. Choose a GPU near to it, gpu={gpu_specs.names()}."]
    installed = figures | {
        "name": "auto",
        "device_name": here.name,
        "memory_bytes": here.memory_bytes,
        "capability": ".".join(map(str, here.capability)),
        "host_factor": cfg.gpu.host_factor,
        "price_per_hour": cfg.gpu.price_per_hour,
    }
    cfg.gpu = config.from_dict(installed, config.Gpu)
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A training run may name the installed GPU only, as the commands that fit prints do; an estimate has no CPU."""
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


HOOKS = hooks.register("gpu", hooks.Hooks(resolve=resolve, problems=problems))
