"""The figures of GPUs: the options of the menu `gpu`, and other cards of their chips by the names of devices."""

import functools
import re
from pathlib import Path

from legroom import paths, yaml_table

MENU = paths.CONF / "gpu"
VARIANTS = Path(__file__).with_name("gpu_variants.yaml")
# Keys of a GPU that no data sheet has: they say how it is used.
NOT_OF_A_SHEET = (
    "host_factor",
    "machines",
    "machine_link_gb_per_second",
    "price_per_hour",
    "host_memory_gib",
    "used_gib",
    "power_limit",
    "instance",
)


@functools.cache
def options() -> dict[str, dict]:
    """Option name -> its figures, without auto."""
    return {path.stem: yaml_table.read(path) for path in sorted(MENU.glob("*.yaml")) if path.stem != "auto"}


@functools.cache
def find(device_name: str, memory_bytes: int = 0) -> dict | None:
    """The figures of a device by the name that NVML gives it; None for one that we have no figures of.

    A device that an option names is that option's. memory_bytes: tells other cards of one chip apart (the nearest
    counts). A variant has its chip's figures except for those that its own line names.
    """
    named = [figures for figures in options().values() if figures["device_name"] == device_name]
    if len(named) == 1:
        return named[0]
    if re.search(r"\b(Laptop|MIG|Ti|SUPER|D)\b", device_name):  # a part of the name's chip, or another one
        return None
    for variant in yaml_table.read(VARIANTS):
        if _named(variant["name"], device_name):
            differences = {key: value for key, value in variant.items() if key not in ("name", "of")}
            return options()[variant["of"]] | differences
    same = [figures for figures in options().values() if _named(figures["chip"], device_name)]
    return min(same, key=lambda figures: abs(figures["memory_bytes"] - memory_bytes), default=None)


def _named(chip: str, device_name: str) -> bool:
    return re.search(rf"\b{re.escape(chip)}\b", device_name) is not None


def peak_flops(device_name: str, precision: str) -> float | None:
    """Dense peak FLOP/s of a device in a precision's arithmetic; None where we have no such figure."""
    figures = find(device_name)
    if figures is None:
        return None
    teraflops = figures.get(f"{precision.removesuffix('_pure')}_tflops")
    if teraflops is None:
        return None
    return teraflops * 1e12


def names() -> str:
    return ", ".join(options())
