"""A real run of somebody's script beside its prediction, and the record of both that may be given away.

Imports no torch.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legroom.errors import Refusal
from legroom.foresight.programs import check, process
from legroom.foresight.programs.command import Program
from legroom.foresight.step_estimate import gpu_of
from legroom.machine import host
from legroom.units import PARTS
from legroom.version import VERSION

STEPS = 8
OBSERVER = "legroom.foresight.programs.measured:observe"
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "trl", "lightning", "diffusers", "timm", "bitsandbytes")
# What is measured and predicted alike, by the names of both; bytes, and the last in seconds.
COMPARED = (
    "tensor_bytes",
    *(f"{part}_bytes" for _, part in PARTS),
    "allocated_bytes",
    "reserved_bytes",
    "step_seconds",
)


@dataclasses.dataclass(frozen=True)
class SharedRecord:
    """What a person may send to others: sizes, times and versions; no path, no name of a file or a model, no data.

    measured and predicted: the figures named in COMPARED, null where there is none. parameters: their number. schema:
    of this record.
    """

    schema: int
    legroom: str
    versions: dict[str, str]
    device: str
    device_name: str
    steps: int
    parameters: int
    trained_parameters: int
    model_flops: int | None
    device_used_bytes: int | None
    measured: dict[str, float | None]
    predicted: dict[str, float | None] | None


@dataclasses.dataclass(frozen=True)
class Measurement:
    """found: what the observer saw (measured.py). outcome: how the run ended. predicted: by the names of COMPARED."""

    outcome: process.Outcome
    found: dict[str, Any]
    predicted: dict[str, float | None] | None = None

    @property
    def measured(self) -> dict[str, float | None]:
        """The figures that are compared; None: the device has none, or the script took too few steps."""
        found = self.found
        own = {"tensor_bytes": "peak_tensor_bytes", "step_seconds": "step_seconds_median"}
        own |= {f"{name}_bytes": f"peak_{name}_bytes" for name in ("allocated", "reserved")}
        return {name: found.get(own.get(name, name)) for name in COMPARED}

    def shared(self) -> SharedRecord:
        """The record that may be given away."""
        versions = {name: version for name in LIBRARIES if (version := host.version(name)) is not None}
        known: dict[str, Any] = {"schema": 1, "legroom": VERSION, "versions": versions}
        known |= {"measured": self.measured, "predicted": self.predicted}
        others = {each.name for each in dataclasses.fields(SharedRecord)} - known.keys()
        return SharedRecord(**known, **{name: self.found[name] for name in others})


def measure(
    program: Program,
    limits: process.Limits,
    steps: int = STEPS,
    offline: bool = False,
    on_message: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Measurement:
    """Run a script for some optimizer steps under the observers of a prediction.

    Raises NotFollowed, a Refusal, where it failed, was ended, or took fewer than two steps.
    """
    outcome = process.run(process.Asked(program, OBSERVER, {}, steps, limits, offline), on_message)
    found = outcome.found or {}
    if not found.get("peak_tensor_bytes"):
        raise check.NotFollowed(outcome, check.why_not(program, outcome))
    return Measurement(outcome, found)


def predicted(program: Program, found: dict[str, Any], settings: check.Settings) -> dict[str, float | None]:
    """The figures of COMPARED as `legroom check` predicts them for the device on which `found` was measured: on a CPU
    those of live tensors. Raises Refusal where it has none."""
    if found["device"] == "cpu":
        made, _ = check.on_cpu(program, settings)
        return {name: made.get(name) for name in COMPARED}
    (run,) = check.followed(program, {"auto": gpu_of("auto")}, dataclasses.replace(settings, longest=False))
    if not run.estimates:
        raise Refusal(run.why)
    estimate = run.estimates["auto"]
    own: dict[str, float | None] = {f"{part}_bytes": value for part, value in estimate.parts.items()}
    return {name: own.get(name, getattr(estimate, name, None)) for name in COMPARED}


def write_shared(measurement: Measurement, path: Path) -> None:
    path.write_text(json.dumps(dataclasses.asdict(measurement.shared()), indent=1) + "\n")
