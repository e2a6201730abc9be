"""The seconds of a step on a CPU, from its operations and what the command `calibrate` measured on this machine.

A CPU does one thing after the other: a step takes the seconds of all operations and those of the calls around them.
Operations take what calls of the same name, dtype and size took; products what products of a similar shape reached.
"""

from __future__ import annotations

import math
from collections import defaultdict

from legroom.foresight.speed import operation_names as ops
from legroom.foresight.speed.calibrated import HERE, CpuRates, Points
from legroom.foresight.speed.operations import Operation, Tally
from legroom.foresight.speed.roofline import Prediction

# What stands for an operation that was not measured, by its class.
LIKE = {
    ops.ELEMENTWISE: "add",
    ops.REDUCTION: "sum",
    ops.COPY: "clone",
    ops.HOST_COPY: "clone",
    ops.OPTIMIZER: "_foreach_mul_",
    ops.ATTENTION: "add",
    ops.MATMUL: "add",
}
NEAREST = 3  # shapes among the measured ones that a product is compared with


def key(operation: Operation) -> str:
    """The name under which an operation's seconds are measured: with an underscore where it works in place."""
    name = operation.name if not operation.in_place or operation.name.endswith("_") else f"{operation.name}_"
    return f"{name} {operation.dtype}"


def predict(tally: Tally, rates: CpuRates, fresh_bytes: int = 0) -> Prediction:
    """The seconds of the step whose operations a tally holds. fresh_bytes: `OpTrace.fresh_bytes`."""
    by_kind: dict[str, float] = defaultdict(float)
    for counts in tally.counts.values():
        for operation, times in counts.items():
            if operation.kind != ops.COLLECTIVE:
                by_kind[operation.kind] += times * seconds(operation, rates)
    by_kind[ops.COPY] += fresh_bytes * rates.fault_seconds
    device = sum(by_kind.values())
    host = sum(times * rates.call_seconds[phase] for phase, times in tally.calls.items())
    arithmetic = by_kind[ops.MATMUL] + by_kind[ops.ATTENTION]
    step = device + host
    return Prediction(
        step, step * (1 - rates.error), step * (1 + rates.error), device, host, 0.0, arithmetic, dict(by_kind), HERE
    )


def seconds(operation: Operation, rates: CpuRates) -> float:
    """The seconds of one call, beyond those that any call takes (`CpuRates.call_seconds`)."""
    if operation.kind == ops.MATMUL and operation.shape:
        table = rates.batched if operation.shape[0] > 1 else rates.products
        measured = table.get(f"{operation.dtype} {operation.layout}") or table.get(f"{operation.dtype} nn")
        if measured:
            return operation.flops / product_rate(operation.shape[1:], measured)
    if operation.kind == ops.ATTENTION and key(operation) in rates.attention:
        return at(operation.flops, rates.attention[key(operation)])
    for name in (key(operation), f"{operation.name} {operation.dtype}", f"{LIKE[operation.kind]} {operation.dtype}"):
        if name in rates.operations:
            return _beyond_the_call(operation.bytes, rates.operations[name])
    return _beyond_the_call(operation.bytes, rates.operations[f"{LIKE[operation.kind]} fp32"])


def _beyond_the_call(size: float, points: Points) -> float:
    return max(0.0, at(size, points) - points[0][1])


def at(size: float, points: Points) -> float:
    """The seconds at a size between measured ones, by a straight line of logarithms; in proportion outside of them."""
    if size <= points[0][0]:
        return points[0][1]  # a smaller call costs the same: it is a call
    for (below, early), (above, late) in zip(points, points[1:]):
        if size <= above:
            share = math.log(size / below) / math.log(above / below)
            return early * (late / early) ** share
    return points[-1][1] * size / points[-1][0]


def product_rate(shape: tuple[int, ...], measured: list[tuple[int, int, int, float]]) -> float:
    """FLOP/s of a product: the geometric mean of the nearest measured shapes, the nearer the more."""
    distances = sorted(
        (sum(math.log2(side / other) ** 2 for side, other in zip(shape, point[:3])), point[3]) for point in measured
    )[:NEAREST]
    weights = [1 / (distance + 0.05) ** 2 for distance, _ in distances]
    return math.exp(sum(weight * math.log(rate) for weight, (_, rate) in zip(weights, distances)) / sum(weights))
