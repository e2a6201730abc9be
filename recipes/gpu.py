"""gpu: the figures of GPUs, from the menu. One source for predictions and for MFU's denominator."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import yaml

from recipes import config, machine, paths

MENU = paths.CONF / "gpu"
VARIANTS = Path(__file__).with_name("gpu_variants.yaml")


@functools.cache
def options() -> dict[str, dict]:
    """Option name -> its figures, without auto."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted(MENU.glob("*.yaml")) if path.stem != "auto"}


@functools.cache
def find(device_name: str, memory_bytes: int = 0) -> dict | None:
    """The figures of a device by the name that NVML gives it; None for one that we have no figures of.

    memory_bytes: tells cards of one chip apart (the nearest counts). A variant has its chip's figures
    except for those that its own line names.
    """
    if re.search(r"\b(Laptop|MIG|Ti|SUPER|D)\b", device_name):  # a part of the name's chip, or another one
        return None
    for variant in yaml.safe_load(VARIANTS.read_text()):
        if _named(variant["name"], device_name):
            return options()[variant["of"]] | {key: value for key, value in variant.items() if key not in ("name", "of")}
    same = [figures for figures in options().values() if _named(figures["chip"], device_name)]
    return min(same, key=lambda figures: abs(figures["memory_bytes"] - memory_bytes), default=None)


def _named(words: str, device_name: str) -> bool:
    return re.search(rf"\b{re.escape(words)}\b", device_name) is not None


def at_hand(option: str) -> bool:
    """Whether the GPU of this machine is the one that an option of the menu describes."""
    here = machine.gpus()
    return bool(here) and find(here[0].name, here[0].memory_bytes) == options()[option]


def peak_flops(device_name: str, precision: str) -> float | None:
    """Dense peak FLOP/s of a device in a precision's arithmetic; None where we have no such figure."""
    row = {"bf16_pure": "bf16"}.get(precision, precision)
    teraflops = (find(device_name) or {}).get(f"{row}_tflops")
    return None if teraflops is None else teraflops * 1e12


# --- hooks of validate.py ---------------------------------------------------------------------


def resolve(cfg) -> list[str]:
    """gpu=auto of an estimate becomes the GPU at hand. Returns what stands in the way of it."""
    if cfg.recipe.name != "estimate" or cfg.gpu.name != "auto" or cfg.device == "cpu":
        return []
    if not machine.gpus():
        return [f"recipe=estimate has no GPU here to predict for: say which, gpu={_names()}."]
    here = machine.gpus()[0]
    figures = find(here.name, here.memory_bytes)
    if figures is None:
        return [f"gpu=auto: there are no figures of {here.name}. Choose a GPU near to it, gpu={_names()}."]
    told = figures | {"name": "auto", "device_name": here.name, "memory_bytes": here.memory_bytes,
                      "capability": ".".join(map(str, here.capability))}
    cfg.gpu = config.from_dict(told, config.Gpu)
    return []


def problems(cfg) -> list[str]:
    """A run takes the GPU at hand, whatever stands in the menu: a command from fit, which names it, may run there."""
    if cfg.gpu.name == "auto" or cfg.recipe.name != "estimate" and cfg.device != "cpu" and at_hand(cfg.gpu.name):
        return []
    if cfg.recipe.name == "estimate":
        return [f"device=cpu asks for the tensors of a run on a CPU, and gpu={cfg.gpu.name} for those on a GPU. Leave "
                "one of them out."] if cfg.device == "cpu" else []
    return [f"gpu={cfg.gpu.name} belongs to recipe=estimate, which predicts; recipe={cfg.recipe.name} trains on the "
            "GPU at hand. Add recipe=estimate, or leave gpu= out."]


def _names() -> str:
    return ", ".join(options())
