"""The anatomy of a step: what its operations come to by group, phase, module and layer.

The groups are those of Ivanov et al. 2020 (arXiv 2007.00072): tensor contractions (matrix products, attention kernels),
statistical normalisations (reductions, and what is made of them: softmax, layer norms, losses, the gradients of biases)
and element-wise work. Beside them stand the optimizer (everything from the last backward pass to the end of the step,
clipping included), communication with other ranks, and copies (casts, gathers, fills).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from legroom.config import Gpu
from legroom.estimator.speed import efficiencies, links, roofline
from legroom.estimator.speed import operation_names as ops
from legroom.estimator.speed.operations import Operation, Tally
from legroom.estimator.speed.summary import OPERATION_GROUPS, Operations

CONTRACTIONS, NORMALISING, ELEMENT_WISE, UPDATE, COMMUNICATION, COPIES = GROUPS = OPERATION_GROUPS
_GROUP_OF = {
    ops.MATMUL: CONTRACTIONS,
    ops.ATTENTION: CONTRACTIONS,
    ops.REDUCTION: NORMALISING,
    ops.ELEMENTWISE: ELEMENT_WISE,
    ops.OPTIMIZER: UPDATE,
    ops.COPY: COPIES,
    ops.COLLECTIVE: COMMUNICATION,
    ops.HOST_COPY: COPIES,
}
NORMALISATION_FLOPS = 5  # per element: find the mean or maximum, subtract, square or exponentiate, sum, multiply
LARGEST = 12  # operations that the record names
FIGURES = ("calls", "flops", "bytes", "seconds")


class Call(NamedTuple):
    """Equal calls of an operation in one module: how often, and the seconds of all of them; None: not known."""

    phase: str
    module: str
    operation: Operation
    calls: int
    seconds: float | None
    bound_by: str | None


@dataclass(frozen=True)
class Anatomy:
    """summary: for the record. details: for the page, in JSON's types (`rows`, `layers`)."""

    summary: Operations
    details: dict[str, Any]


def calls_of(tally: Tally, cost: Callable[[Operation], tuple[float, str]] | None) -> list[Call]:
    """The operations of a tally that knows their modules. cost: (seconds, what bounds it) of one call."""
    found = []
    for phase, places in tally.places.items():
        for (module, operation), times in places.items():
            seconds, bound_by = (None, None) if cost is None else cost(operation)
            found.append(Call(phase, module, operation, times, None if seconds is None else times * seconds, bound_by))
    return found


def anatomy(calls: Iterable[Call], seconds_from: str | None) -> Anatomy:
    """What the calls of a step come to. seconds_from: predicted, cuda, cpu, or None where the calls have no seconds."""
    groups: dict[tuple, list] = defaultdict(lambda: [0, 0, 0, 0.0])
    rows: dict[tuple, list] = defaultdict(lambda: [0, 0, 0, 0.0])
    layers: dict[tuple, float] = defaultdict(float)
    bounds: dict[tuple, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for call in calls:
        operation, group = call.operation, group_of(call.operation, call.phase)
        figures = (call.calls, call.calls * flops_of(operation), call.calls * operation.bytes, call.seconds or 0.0)
        row = (group, call.phase, without_numbers(call.module), operation.name)
        for sums in (groups[group, call.phase], rows[row]):
            for index, figure in enumerate(figures):
                sums[index] += figure
        if call.bound_by is not None:
            bounds[row][call.bound_by] += call.seconds or 0.0
        layer = layer_of(call.module)
        if layer is not None and call.seconds is not None:
            layers[layer, call.phase, group] += call.seconds

    def described(names: tuple[str, ...], key: tuple, sums: list) -> dict[str, Any]:
        return dict(zip(names, key)) | dict(zip(FIGURES, sums)) | ({} if seconds_from else {"seconds": None})

    listed = [
        described(("group", "phase", "module", "name"), key, sums)
        | {"bound_by": max(bounds[key], key=bounds[key].__getitem__) if bounds[key] else None}
        for key, sums in sorted(rows.items(), key=lambda item: (-item[1][3], -item[1][2]))
    ]
    by_group = [
        described(("group", "phase"), key, sums)
        for key, sums in sorted(groups.items(), key=lambda item: (GROUPS.index(item[0][0]), item[0][1]))
    ]
    by_layer = [[*key, seconds] for key, seconds in layers.items()]
    return Anatomy(Operations(seconds_from, by_group, listed[:LARGEST]), {"rows": listed, "layers": by_layer})


def predicted(tally: Tally, gpu: Gpu | None, precision: str, num_processes: int) -> Anatomy:
    """The anatomy of a simulated step. gpu: resolved; None: a CPU, whose seconds are not predicted."""
    if gpu is None:
        return anatomy(calls_of(tally, None), None)
    reached = efficiencies.of_gpu(gpu)

    def cost(operation: Operation) -> tuple[float, str]:
        if operation.kind == ops.COLLECTIVE:
            return links.collective_seconds(operation, gpu, num_processes, reached)
        seconds = roofline.device_seconds(operation, gpu, precision, reached)
        if operation.kind == ops.HOST_COPY:
            return seconds, "host link"
        if operation.kernels * reached.kernel_seconds > seconds / 2:
            return seconds, "launches"
        computes = operation.flops and roofline.is_arithmetic(operation, gpu, precision, reached)
        return seconds, "arithmetic" if computes else "memory"

    return anatomy(calls_of(tally, cost), "predicted")


def group_of(operation: Operation, phase: str) -> str:
    """One of GROUPS."""
    group = _GROUP_OF[operation.kind]
    return UPDATE if phase == "step" and group != COMMUNICATION else group


def flops_of(operation: Operation) -> int:
    """FLOPs of one call: of a contraction by torch's formulas, else counted roughly by its elements."""
    if operation.flops or operation.kind in (ops.COPY, ops.COLLECTIVE):
        return operation.flops
    normalises = any(part in operation.name for part in ops.NORMALISATIONS)
    return operation.elements * (NORMALISATION_FLOPS if normalises else 1)


def without_numbers(module: str) -> str:
    """ "layers.*.mlp" for "layers.3.mlp"."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", module)


def layer_of(module: str) -> str | None:
    """ "encoder.layer.3" for "encoder.layer.3.attention.self"; None outside of numbered modules."""
    found = re.match(r"(.*?(?:^|\.)\d+)(?=\.|$)", module)
    return found[1] if found else None
