"""The anatomy of a step: what its operations come to by group, phase, module and layer.

The groups are those of Ivanov et al. 2020 (arXiv 2007.00072): tensor contractions (matrix products, attention kernels),
statistical normalisations (reductions, and what is made of them: softmax, layer norms, losses, the gradients of biases)
and element-wise work. Beside them stand the optimizer (everything from the last backward pass to the end of the step,
clipping included), communication with other ranks, and copies (casts, gathers, fills).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
    calls = []
    for phase, places in tally.places.items():
        for (module, operation), times in places.items():
            if cost is None:
                calls.append(Call(phase, module, operation, times, None, None))
            else:
                seconds, bound_by = cost(operation)
                calls.append(Call(phase, module, operation, times, times * seconds, bound_by))
    return calls


@dataclass
class Sums:
    """What several calls come to."""

    calls: int = 0
    flops: int = 0
    bytes: int = 0
    seconds: float = 0.0
    seconds_by_bound: dict[str, float] = field(default_factory=dict)

    def add(self, call: Call) -> None:
        seconds = call.seconds or 0.0
        self.calls += call.calls
        self.flops += call.calls * flops_of(call.operation)
        self.bytes += call.calls * call.operation.bytes
        self.seconds += seconds
        if call.bound_by is not None:
            self.seconds_by_bound[call.bound_by] = self.seconds_by_bound.get(call.bound_by, 0.0) + seconds

    @property
    def bound_by(self) -> str | None:
        """What bounds most of the seconds."""
        return max(self.seconds_by_bound, key=self.seconds_by_bound.__getitem__, default=None)

    def figures(self, has_seconds: bool) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "flops": self.flops,
            "bytes": self.bytes,
            "seconds": self.seconds if has_seconds else None,
        }


def anatomy(calls: Iterable[Call], seconds_from: str | None) -> Anatomy:
    """What the calls of a step come to. seconds_from: predicted, cuda, cpu, or None where the calls have no seconds."""
    groups: defaultdict[tuple[str, str], Sums] = defaultdict(Sums)
    rows: defaultdict[tuple[str, str, str, str], Sums] = defaultdict(Sums)
    layers: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for call in calls:
        group = group_of(call.operation, call.phase)
        groups[group, call.phase].add(call)
        rows[group, call.phase, without_numbers(call.module), call.operation.name].add(call)
        layer = layer_of(call.module)
        if layer is not None and call.seconds is not None:
            layers[layer, call.phase, group] += call.seconds

    has_seconds = seconds_from is not None
    listed = []
    for (group, phase, module, name), sums in sorted(rows.items(), key=lambda row: (-row[1].seconds, -row[1].bytes)):
        row = {"group": group, "phase": phase, "module": module, "name": name}
        listed.append(row | sums.figures(has_seconds) | {"bound_by": sums.bound_by})
    by_group = []
    for group, phase in sorted(groups, key=lambda key: (GROUPS.index(key[0]), key[1])):
        by_group.append({"group": group, "phase": phase} | groups[group, phase].figures(has_seconds))
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
        if operation.flops and roofline.is_arithmetic(operation, gpu, precision, reached):
            return seconds, "arithmetic"
        return seconds, "memory"

    return anatomy(calls_of(tally, cost), "predicted")


def group_of(operation: Operation, phase: str) -> str:
    """One of GROUPS."""
    group = _GROUP_OF[operation.kind]
    if phase == "step" and group != COMMUNICATION:
        return UPDATE
    return group


def flops_of(operation: Operation) -> int:
    """FLOPs of one call: of a contraction by torch's formulas, else counted roughly by its elements."""
    if operation.flops or operation.kind in (ops.COPY, ops.COLLECTIVE):
        return operation.flops
    if any(part in operation.name for part in ops.NORMALISATIONS):
        return operation.elements * NORMALISATION_FLOPS
    return operation.elements


def without_numbers(module: str) -> str:
    """ "layers.*.mlp" for "layers.3.mlp"."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", module)


def layer_of(module: str) -> str | None:
    """ "encoder.layer.3" for "encoder.layer.3.attention.self"; None outside of numbered modules."""
    match = re.match(r"(.*?(?:^|\.)\d+)(?=\.|$)", module)
    return match[1] if match else None
