"""The command `scripts/evidence/fit_efficiencies.py FOLDER`: a GPU's efficiencies from runs that were measured on it.

Least squares on logarithms, with a weak pull towards the prior values; printed as YAML.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import coordinate_descent
import yaml
from error_stats import rank_correlation, signed, summary

from legroom import config
from legroom.config import Gpu
from legroom.estimator.speed import efficiencies, roofline
from legroom.estimator.speed.efficiencies import Efficiencies
from legroom.estimator.speed.operation_names import ATTENTION, COLLECTIVE, MATMUL
from legroom.estimator.speed.operations import Tally
from legroom.foresight import simulation
from legroom.machine import gpu_specs, host
from legroom.records.record import Record
from legroom.report import read

FITTED = ("matmul", "attention", "bandwidth", "kernel_seconds", "host_seconds")
LEAST_RUNS = 4
PULL = 0.01  # weight of a value e times its prior, against a step predicted wrong by a factor of e
STRIDES = (0.3, 0.003)  # of a value's logarithm
Values = dict[str, dict[str, float]]  # field of Efficiencies -> key -> value
FRACTIONS = ("matmul", "attention", "bandwidth")  # values that are a fraction of a peak: at most 1, or their prior


@dataclass(frozen=True)
class MeasuredStep:
    """A step that was measured: its operations, the option of `precision`, and its seconds."""

    name: str
    tally: Tally
    precision: str
    seconds: float


def fit(steps: list[MeasuredStep], gpu: Gpu, prior: Efficiencies) -> Efficiencies:
    """The efficiencies that predict these steps best, found by changing one value at a time (coordinate descent).

    Values that no step depends on keep their prior. The steps are of one process, so no value of the link is fitted.
    """
    start = {field: copy.deepcopy(getattr(prior, field)) for field in (*FRACTIONS, "host_seconds")}
    start["kernel_seconds"] = {"": prior.kernel_seconds}

    def with_values(values: Values) -> Efficiencies:
        fields = values | {"kernel_seconds": values["kernel_seconds"][""]}
        return dataclasses.replace(prior, source="measured", runs=tuple(step.name for step in steps), **fields)

    def loss(values: Values) -> float:
        reached = with_values(values)
        wrong = sum(
            math.log(roofline.predict(step.tally, gpu, step.precision, reached=reached).step_seconds / step.seconds)
            ** 2
            for step in steps
        )
        return wrong + PULL * sum(
            math.log(values[group][key] / start[group][key]) ** 2 for group in values for key in values[group]
        )

    used = _used(steps, gpu)
    fitted = [(group, key) for group in start for key in start[group] if (group, key) in used]

    def scaled(values: Values, value_of: tuple[str, str], factor: float) -> Values:
        """The values with one of them multiplied. value_of: its group, and its key there."""
        group, key = value_of
        value = values[group][key] * factor
        # A GeForce clocks above its sheet, and some more than others.
        most = max(1.0, 1.1 * start[group][key]) if group in FRACTIONS else math.inf
        return values | {group: values[group] | {key: min(value, most)}}

    return with_values(coordinate_descent.minimise(loss, start, fitted, scaled, STRIDES, least_gain=1e-12))


def _used(steps: list[MeasuredStep], gpu: Gpu) -> set[tuple[str, str]]:
    """(group, key) of each value that the time of a step may depend on."""
    used = {("kernel_seconds", "")}
    for step in steps:
        used |= {("host_seconds", phase) for phase in step.tally.calls}
        for counts in step.tally.counts.values():
            for operation in counts:
                if operation.kind == COLLECTIVE:
                    continue
                used.add(("bandwidth", operation.kind))
                if operation.kind == ATTENTION:
                    used.add(("attention", roofline.attention_kernel(operation.name)))
                if operation.kind == MATMUL:
                    used.add(("matmul", roofline.arithmetic(operation, step.precision, gpu)))
    return used


def errors(steps: list[MeasuredStep], gpu: Gpu, reached: Efficiencies) -> list[float | None]:
    """The signed errors of the predicted seconds of these steps."""
    return [
        signed(roofline.predict(step.tally, gpu, step.precision, reached=reached).step_seconds, step.seconds)
        for step in steps
    ]


def is_usable(run: Record) -> bool:
    """Whether a record is of a measured run of one process on a GPU of conf/gpu/, without torch.compile."""
    return (
        run.status == "ok"
        and run.recipe != "estimate"
        and run.environment.get("device") == "cuda"
        and run.speed.step_seconds_median is not None
        and not run.config["compile"]
        and run.config["parallelism"]["name"] == "single"
        and gpu_specs.find(run.environment["device_name"]) is not None
    )


def measured_step(run: Record) -> MeasuredStep:
    """A record as a step to fit on: its configuration runs again on the fake device, for its operations."""
    cfg = config.from_dict(run.config)
    cfg.recipe.kind = "estimate"
    cfg.gpu = gpu_of(run)
    cfg.target = host.target(cfg)
    with tempfile.TemporaryDirectory() as folder:
        tally = simulation.simulate_step(cfg, folder).tally
    assert run.speed.step_seconds_median is not None, "is_usable"
    return MeasuredStep(run.config_key, tally, cfg.precision.kind, run.speed.step_seconds_median)


def gpu_of(run: Record) -> config.Gpu:
    """The figures of the GPU that a run was measured on."""
    found = gpu_specs.find(run.environment["device_name"], run.environment["device_memory_bytes"])
    assert found is not None, "is_usable"
    return config.from_dict(found, config.Gpu)


def run(folders: list[Path]) -> int:
    """Fit on every second run in the folders, print the errors on the fitted and on the other runs, and the YAML.

    Returns the exit code: 2 where there are fewer than 4 usable runs, or runs on several GPUs.
    """
    found, _ = read.read_with_folders(folders)
    records = sorted(filter(is_usable, (record for record, _ in found)), key=lambda record: record.config_key)
    names = {record.environment["device_name"] for record in records}
    if len(records) < LEAST_RUNS or len(names) != 1:
        print(
            f"refused: {len(records)} runs that can be used, on {', '.join(sorted(names)) or 'no known GPU'}: at least "
            f"{LEAST_RUNS} of one GPU are needed.",
            file=sys.stderr,
        )
        return 2
    with ProcessPoolExecutor(host.usable_cores()) as pool:
        steps = list(pool.map(measured_step, records))
    gpu = gpu_of(records[0])
    before = efficiencies.of_gpu(gpu)
    after = fit(steps[::2], gpu, before)
    for name, chosen in (("fitted on", steps[::2]), ("held out", steps[1::2])):
        for when, reached in (("before", before), ("after", after)):
            total = summary(errors(chosen, gpu, reached))
            assert total is not None, "at least 4 runs"
            print(
                f"# {name}, {when}: {total.count} runs, median size {total.median_size:.1%}, worst {total.worst:+.1%}"
            )
    predicted = [roofline.predict(step.tally, gpu, step.precision, reached=after).step_seconds for step in steps[1::2]]
    correlation = rank_correlation(zip(predicted, (step.seconds for step in steps[1::2])))
    print(f"# held out: rank correlation {'none' if correlation is None else format(correlation, '.3f')}")
    values = {"from": "measured", "runs": list(after.runs)} | {key: getattr(after, key) for key in FITTED}
    print(yaml.safe_dump({gpu.chip: values}, sort_keys=False, default_flow_style=None, width=110), end="")
    return 0
