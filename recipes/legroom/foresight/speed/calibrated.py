"""What the command `calibrate` measured on this machine: a file for each device, which its estimates then use.

The files lie in LEGROOM_CALIBRATION, or in ~/.cache/legroom/calibration. One that was measured with another version
of torch, or with another number of threads, is not used, and the estimate says so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legroom import invocation

HERE = "measured here"  # efficiencies_from of an estimate that used such a file
VERSION = 2  # of what the figures of a CPU mean
FOLDER = "LEGROOM_CALIBRATION"  # the environment variable

Points = list[tuple[float, float]]  # (bytes or FLOPs, seconds), ascending


@dataclass
class CpuRates:
    """A CPU, measured.

    operations: `key` -> (bytes of a call, its seconds), the first of a tensor so small that they are those of the call
    itself. attention: the same by FLOPs. products: dtype and layout ->
    (M, N, K, FLOP/s); batched: the same of batches. call_seconds: of the host, by phase. error: the share within which
    nine of ten steps are taken to be: with a fresh file, the 48 of docs/results/accuracy_cpu.md all are within 0.29.
    """

    device: str
    threads: int
    torch: str
    date: str
    operations: dict[str, Points] = field(default_factory=dict)
    attention: dict[str, Points] = field(default_factory=dict)
    products: dict[str, list[tuple[int, int, int, float]]] = field(default_factory=dict)
    batched: dict[str, list[tuple[int, int, int, float]]] = field(default_factory=dict)
    call_seconds: dict[str, float] = field(default_factory=dict)
    fault_seconds: float = 0.0  # for each byte of memory that is touched for the first time
    error: float = 0.3
    version: int = VERSION


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


def write(rates: CpuRates | GpuRates) -> Path:
    """Write the file of a device; returns its path."""
    path = path_of(rates.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(rates), indent=1) + "\n")
    _read.cache_clear()
    return path


def cpu(device: str, threads: int, torch_version: str) -> tuple[CpuRates | None, str]:
    """(what was measured of this CPU, "") or (None, why there is nothing to use)."""
    values = _read(path_of(device))
    if values is None:
        return None, f"this CPU has not been measured; {invocation.command('calibrate')} does that in a minute."
    again = f"run {invocation.command('calibrate')} again."
    if values.get("version") != VERSION:
        return None, f"this CPU was measured by an older legroom: {again}"
    rates = CpuRates(**values)
    for name, then, now in (("threads", rates.threads, threads), ("torch", rates.torch, torch_version)):
        if then != now:
            return None, f"this CPU was measured with {name} {then}, and here it is {now}: {again}"
    return rates, ""


def gpu(device_name: str) -> GpuRates | None:
    """What was measured of a GPU, or None."""
    values = _read(path_of(device_name))
    return None if values is None or "efficiencies" not in values else GpuRates(**values)


@functools.cache
def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
