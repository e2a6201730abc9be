"""A real run of somebody's script beside its prediction, and the record of both that may be given away.

Imports no torch before the run is over.
"""

import dataclasses
import itertools
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legroom.errors import Refusal
from legroom.estimator.cards import gpu_of
from legroom.machine import host
from legroom.script_check import check, interpreter, process
from legroom.script_check.command import Program
from legroom.units import PARTS
from legroom.version import VERSION

STEPS = 8
COUNTED = 2  # steps whose tensors are counted; the one after them warms up, and the later ones are timed
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
    trained_parameters: int
    model_flops: int | None
    measured: dict[str, float | None]
    predicted: dict[str, float | None] | None


@dataclasses.dataclass(frozen=True)
class Measurement:
    """found: the figures, with those of COMPARED among them. outcome: how the run ended. predicted: by the names of
    COMPARED."""

    outcome: process.Outcome
    found: dict[str, Any]
    predicted: dict[str, float | None] | None = None

    @property
    def measured(self) -> dict[str, float | None]:
        """The figures that are compared; None: the device has none, or the script took too few steps."""
        return {name: self.found.get(name) for name in COMPARED}

    def shared(self) -> SharedRecord:
        """The record that may be given away."""
        versions = {}
        for name in LIBRARIES:
            version = host.version(name)
            if version is not None:
                versions[name] = version
        versions["torch"] = self.found["torch"]
        return SharedRecord(
            schema=2,
            legroom=VERSION,
            versions=versions,
            device=self.found["device"],
            device_name=self.found["device_name"],
            steps=self.outcome.steps,
            trained_parameters=self.found["trained_parameters"],
            model_flops=self.found["model_flops"],
            measured=self.measured,
            predicted=self.predicted,
        )


def measure(
    program: Program,
    seconds: float = check.SECONDS,
    steps: int = STEPS,
    on_message: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Measurement:
    """Run a script for some optimizer steps, with its own Python, on the device that it finds.

    Raises NotFollowed, a Refusal, where it failed, was ended, or took fewer than two steps; and Refusal where it has
    several ranks, of which one alone would wait for the others.
    """
    if program.ranks is not None and program.ranks > 1:
        raise Refusal(f"{program.ranks} ranks are not measured. Start one, as with torchrun --nproc_per_node 1.")
    environment = interpreter.facts(process.python_of(program), os.environ | program.environment)
    run = process.Asked(steps, {"real": True}, seconds, network=True, sandboxed=False)
    outcome = process.run(program, environment, os.environ, run, on_message)
    if outcome.recorded is None:
        raise check.NotFollowed(outcome, check.why_not(outcome, COUNTED))
    return Measurement(outcome, _figures(outcome.recorded))


def _figures(recorded: dict[str, Any]) -> dict[str, Any]:
    """The figures of a real run, from what was recorded. Raises Refusal where nothing was on its device."""
    from legroom.script_check import recording

    run = recording.read(recorded)
    if not run.log.events:
        raise Refusal(
            "the script does not use the GPU that is here, so that nothing was counted. To measure it on the CPU, type "
            "CUDA_VISIBLE_DEVICES= in front of it: legroom measure -- CUDA_VISIBLE_DEVICES= python train.py"
        )
    parts = run.parts()
    figures: dict[str, Any] = {
        "device": recorded["device_type"],
        "device_name": recorded["device_name"],
        "torch": recorded["torch"],
        "peak_phase": run.peak_phase,
        "tensor_bytes": sum(parts.values()),
        "allocated_bytes": None,
        "reserved_bytes": None,
        "step_seconds": None,
        "trained_parameters": run.weights.trained,
        "model_flops": run.model_flops,
        "notes": [],
    }
    for part, size in parts.items():
        figures[f"{part}_bytes"] = size
    if recorded["device_type"] == "cuda":
        peaks = recorded["phases"][-1]
        figures["allocated_bytes"] = peaks["allocated"]
        figures["reserved_bytes"] = peaks["reserved"]
    ends = recorded["ends"][COUNTED:]
    if len(ends) > 1:
        figures["step_seconds"] = statistics.median(end - begin for begin, end in itertools.pairwise(ends))
    return figures


def predicted(program: Program, settings: check.Settings) -> dict[str, float | None]:
    """The figures of COMPARED as `legroom check` predicts them for the installed GPU. Raises Refusal where it has
    none."""
    (run,) = check.followed(program, {"auto": gpu_of("auto")}, dataclasses.replace(settings, longest=False))
    if not run.estimates:
        raise Refusal(run.why)
    estimate = run.estimates["auto"]
    figures: dict[str, float | None] = {name: getattr(estimate, name, None) for name in COMPARED}
    for part, size in estimate.parts.items():
        figures[f"{part}_bytes"] = size
    return figures


def write_shared(measurement: Measurement, path: Path) -> None:
    path.write_text(json.dumps(dataclasses.asdict(measurement.shared()), indent=1) + "\n")
