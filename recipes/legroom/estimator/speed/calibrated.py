"""What the command `calibrate` measured on this machine: a file for each GPU, which its estimates then use.

The files lie in LEGROOM_CALIBRATION, or in ~/.cache/legroom/calibration.
"""

import dataclasses
import functools
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = "measured here"  # efficiencies_from of an estimate that used such a file
FOLDER = "LEGROOM_CALIBRATION"  # the environment variable


@dataclass
class GpuRates:
    """A GPU, measured: the values of Efficiencies that the calibration knows, and the bytes of a context."""

    device: str
    torch: str
    date: str
    efficiencies: dict[str, Any] = field(default_factory=dict)
    context_bytes: int | None = None


def folder() -> Path:
    """Where the files lie."""
    return Path(os.environ.get(FOLDER) or Path.home() / ".cache" / "legroom" / "calibration")


def path_of(device: str) -> Path:
    """The file of a device: its name in lower case."""
    return folder() / (re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_") + ".json")


def write(rates: GpuRates) -> Path:
    """Write the file of a device; returns its path."""
    path = path_of(rates.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(rates), indent=1) + "\n")
    _read.cache_clear()
    return path


def gpu(device_name: str) -> GpuRates | None:
    """What was measured of a GPU, or None."""
    values = _read(path_of(device_name))
    if values is None or "efficiencies" not in values:
        return None
    return GpuRates(**values)


@functools.cache
def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
