"""Efficiencies from measured steps: least squares on logarithms, with a weak pull towards the prior values."""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass

from recipes.config import Gpu
from recipes.foresight.speed import roofline
from recipes.foresight.speed.efficiencies import Efficiencies
from recipes.foresight.speed.operation_names import ATTENTION, COLLECTIVE, MATMUL
from recipes.foresight.speed.operations import Tally
from recipes.foresight.validation.error_stats import signed

PULL = 0.01  # weight of a value e times its prior, against a step predicted wrong by a factor of e
FIRST_STRIDE, LAST_STRIDE = 0.3, 0.003  # of a value's logarithm
FRACTIONS = ("matmul", "attention", "bandwidth")  # values that are a fraction of a peak: at most 1


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
    values = {field: copy.deepcopy(getattr(prior, field)) for field in (*FRACTIONS, "host_seconds")}
    values["kernel_seconds"] = {"": prior.kernel_seconds}
    start = copy.deepcopy(values)

    def current() -> Efficiencies:
        fields = values | {"kernel_seconds": values["kernel_seconds"][""]}
        return dataclasses.replace(prior, source="measured", runs=tuple(step.name for step in steps), **fields)

    def loss() -> float:
        reached = current()
        wrong = sum(
            math.log(roofline.predict(step.tally, gpu, step.precision, reached=reached).step_seconds / step.seconds)
            ** 2
            for step in steps
        )
        return wrong + PULL * sum(
            math.log(values[group][key] / start[group][key]) ** 2 for group in values for key in values[group]
        )

    used = _used(steps)
    fitted = [(group, key) for group in values for key in values[group] if (group, key) in used]
    best, stride = loss(), FIRST_STRIDE
    while stride > LAST_STRIDE:
        better = False
        for group, key in fitted:
            before = values[group][key]
            for factor in (math.exp(stride), math.exp(-stride)):
                values[group][key] = min(before * factor, 1.0) if group in FRACTIONS else before * factor
                now = loss()
                if now < best - 1e-12:
                    best, better = now, True
                    break
                values[group][key] = before
        stride = stride if better else stride / 2
    return current()


def _used(steps: list[MeasuredStep]) -> set[tuple[str, str]]:
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
                    used.add(("matmul", roofline.arithmetic(operation, step.precision)))
    return used


def errors(steps: list[MeasuredStep], gpu: Gpu, reached: Efficiencies) -> list[float | None]:
    """The signed errors of the predicted seconds of these steps."""
    return [
        signed(roofline.predict(step.tally, gpu, step.precision, reached=reached).step_seconds, step.seconds)
        for step in steps
    ]
