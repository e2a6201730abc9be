"""Efficiencies from measured steps: least squares on the logarithms, drawn softly to what was believed before."""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass

from recipes.foresight.speed import roofline
from recipes.foresight.speed.operations import ATTENTION, COLLECTIVE, MATMUL, Tally
from recipes.foresight.validation.error_stats import signed

PULL = 0.01  # weight of a factor e away from the belief, against a step predicted wrong by a factor e
FIRST_STRIDE, LAST_STRIDE = 0.3, 0.003  # of a figure's logarithm
UNITS = ("matmul", "attention", "bandwidth")  # parts of a peak: never above 1


@dataclass(frozen=True)
class Measured:
    """A step that ran: its operations, its precision, and how long it took."""

    name: str
    tally: Tally
    precision: str
    seconds: float


def fit(steps: list[Measured], gpu, start: roofline.Efficiencies) -> roofline.Efficiencies:
    """The efficiencies that predict these steps best, by changing one figure at a time. start: the belief.

    Figures that no step depends on stay as they are. One process, so nothing of the link is fitted.
    """
    values = {field: copy.deepcopy(getattr(start, field)) for field in (*UNITS, "host_seconds")}
    values["kernel_seconds"] = {"": start.kernel_seconds}
    belief = copy.deepcopy(values)

    def told() -> roofline.Efficiencies:
        flat = values | {"kernel_seconds": values["kernel_seconds"][""]}
        return dataclasses.replace(start, source="measured", runs=tuple(step.name for step in steps), **flat)

    def loss() -> float:
        now = told()
        wrong = sum(
            math.log(roofline.predict(step.tally, gpu, step.precision, reached=now).step_seconds / step.seconds) ** 2
            for step in steps
        )
        return wrong + PULL * sum(
            math.log(values[group][key] / belief[group][key]) ** 2 for group in values for key in values[group]
        )

    figures = [(group, key) for group in values for key in values[group] if (group, key) in _used(steps)]
    best, stride = loss(), FIRST_STRIDE
    while stride > LAST_STRIDE:
        better = False
        for group, key in figures:
            before = values[group][key]
            for factor in (math.exp(stride), math.exp(-stride)):
                values[group][key] = min(before * factor, 1.0) if group in UNITS else before * factor
                now = loss()
                if now < best - 1e-12:
                    best, better = now, True
                    break
                values[group][key] = before
        stride = stride if better else stride / 2
    return told()


def _used(steps: list[Measured]) -> set[tuple[str, str]]:
    """(group, key) of each figure that a step's time may depend on."""
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


def errors(steps: list[Measured], gpu, reached: roofline.Efficiencies) -> list[float]:
    """Signed errors of the steps' seconds."""
    return [
        signed(roofline.predict(step.tally, gpu, step.precision, reached=reached).step_seconds, step.seconds)
        for step in steps
    ]
