"""What devices reach of their peaks: the table efficiencies.yaml, and what was measured on this machine.

A GPU's own lines stand over those of its chip, and those over `default`. A file that the
command `calibrate` has written for a device stands over all of them.
"""

import dataclasses
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom import yaml_table
from legroom.config import Gpu
from legroom.estimator.speed import calibrated

TABLE = Path(__file__).with_name("efficiencies.yaml")


@dataclass(frozen=True)
class Efficiencies:
    """What a chip reaches of its peaks; the keys of efficiencies.yaml, which explains them.

    source: published, measured or assumed (the key `from`). error: dtype -> the share by which nine of
    ten steps that were not fitted are off.
    """

    source: str
    runs: tuple[str, ...]
    matmul: dict[str, float]
    sustained: dict[str, float]
    batched: dict[str, float]
    tile_depth: dict[str, float]
    sharpness: dict[str, float]
    product_bandwidth: dict[str, float]
    unaligned: float
    attention: dict[str, float]
    bandwidth: dict[str, float]
    l2_bytes: float
    l2_speed: float
    elements_per_cycle: float
    kernel_seconds: float
    host_seconds: dict[str, float]
    autocast: dict[str, float]
    power: float
    boards: float
    link: float
    switch: float
    collective_steps: dict[str, dict[str, float]]
    collective_blocks: dict[str, float]
    error: dict[str, float]


@functools.cache
def table() -> dict[str, Any]:
    """efficiencies.yaml."""
    return yaml_table.read(TABLE)


@functools.cache
def of_chip(chip: str, device_name: str = "") -> Efficiencies:
    """The efficiencies of a chip (`chip` in conf/gpu/), or of one of its boards; other keys come from `default`.

    device_name: as NVML prints it. A board of the chip whose words it contains stands over the chip.
    """
    values = dict(table()["default"])
    layers = [table()["chips"].get(chip, {})]
    for name, board in table()["boards"].items():
        if board["chip"] == chip and re.search(rf"\b{re.escape(name)}\b", device_name):
            layers.append(board)
            break
    runs: tuple[str, ...] = ()
    for layer in layers:
        for key, value in values.items():
            if key in layer:
                values[key] = _over(value, layer[key])
        runs = tuple(layer.get("runs", runs))
    return Efficiencies(source=values.pop("from"), runs=runs, **values)


def _over(below: Any, value: Any) -> Any:
    """A value in place of the one below it; of a mapping its keys alone."""
    if isinstance(value, dict):
        return below | value
    return value


def of_gpu(gpu: Gpu) -> Efficiencies:
    """The efficiencies of a GPU as an estimate uses them: its board's or chip's, and what was measured here."""
    table_values = of_chip(gpu.chip, gpu.device_name)
    measured = calibrated.gpu(gpu.device_name)
    if measured is None:
        return table_values
    changed = {}
    for name, value in measured.efficiencies.items():
        changed[name] = _over(getattr(table_values, name), value)
    # The calibration measures products at the clocks of long work: nothing is left to take off for a whole step.
    sustained = table_values.sustained | dict.fromkeys(measured.efficiencies.get("matmul", ()), 1.0)
    return dataclasses.replace(
        table_values, source=calibrated.HERE, runs=(measured.date,), sustained=sustained, **changed
    )
