"""Efficiencies from measured steps: least squares on logarithms, with a weak pull towards the prior values."""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass

from legroom.config import Gpu
from legroom.foresight.speed import roofline
from legroom.foresight.speed.efficiencies import Efficiencies
from legroom.foresight.speed.operation_names import ATTENTION, COLLECTIVE, MATMUL
from legroom.foresight.speed.operations import Tally
from legroom.foresight.validation import coordinate_descent
from legroom.foresight.validation.error_stats import signed

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

    def efficiencies_of(values: Values) -> Efficiencies:
        fields = values | {"kernel_seconds": values["kernel_seconds"][""]}
        return dataclasses.replace(prior, source="measured", runs=tuple(step.name for step in steps), **fields)

    def loss(values: Values) -> float:
        reached = efficiencies_of(values)
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

    return efficiencies_of(coordinate_descent.minimise(loss, start, fitted, scaled, STRIDES, least_gain=1e-12))


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
