"""The time of a step whose optimizer runs on the host."""

from __future__ import annotations

import pytest
from conftest import compose

from legroom.estimator.speed.operation_names import COLLECTIVE, HOST_COPY
from legroom.estimator.speed.operations import Operation, Tally
from legroom.estimator.speed.roofline import Prediction
from legroom.foresight import host_step

GPU = ("recipe=estimate", "gpu=a100_40gb", "model=gpt2_tiny")
OFFLOAD = ("parallelism=fsdp", "parallelism.num_processes=2", "parallelism.cpu_offload=true")
GPUS = Prediction(1.0, 0.9, 1.2, 1.0, 0.5, 0.0, 1.0, {}, "measured")


def operation(kind: str, size: int) -> Operation:
    return Operation(name=kind, kind=kind, bytes=size)


def tally(size: int) -> Tally:
    """A step whose optimizer reads and writes `size` bytes, beside a copy and a collective of as many."""
    made = Tally()
    made.put(operation("traffic", 7), "backward")
    for kind in ("traffic", HOST_COPY, COLLECTIVE):
        made.put(operation(kind, size), "step")
    return made


def test_copies_and_collectives_are_the_gpus_and_the_rest_of_the_optimizer_the_hosts():
    of_gpu, moved = host_step.split(tally(1000))
    assert moved == 1000
    assert {one.kind for one in of_gpu.counts["step"]} == {HOST_COPY, COLLECTIVE}
    assert [one.bytes for one in of_gpu.counts["backward"]] == [7]


def test_ranks_of_a_machine_share_its_memory():
    one, four = (
        host_step.predicted(
            compose(*GPU, "parallelism=fsdp", f"parallelism.num_processes={ranks}").cfg,
            tally(2 * 10**11),
            lambda _: GPUS,
        )
        for ranks in (1, 4)
    )
    assert four.step_seconds - 1 == pytest.approx(4 * (one.step_seconds - 1))
    assert one.low_seconds < one.step_seconds < one.high_seconds and one.notes and one.bound_by == "host"


def test_an_estimate_of_offload_has_a_time_longer_than_that_without(predicted):
    slow, fast = predicted(*GPU[1:], *OFFLOAD), predicted(*GPU[1:], *OFFLOAD[:2])
    assert slow.speed.step_seconds_median > fast.speed.step_seconds_median
    assert slow.speed.step_seconds_low < slow.speed.step_seconds_median < slow.speed.step_seconds_high
    assert any("optimizer reads and writes" in line for line in slow.warnings)
