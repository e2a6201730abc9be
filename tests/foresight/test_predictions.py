"""What becomes of simulated steps that are made up: the figures of the record, the verdict and every note."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import Any

import pytest
from conftest import compose

from legroom.estimator.memory import allocator
from legroom.estimator.memory.allocator import Demand
from legroom.estimator.memory.settings import UNLIMITED, limits_of
from legroom.estimator.speed.operation_names import ELEMENTWISE, HOST_COPY, MATMUL
from legroom.estimator.speed.operations import Operation, Tally
from legroom.foresight import fullest_rank, prediction, tried
from legroom.foresight.simulation import SimulatedStep
from legroom.records.record import DOES_NOT_FIT, FITS, TIGHT, Estimate, Model, Record
from legroom.units import GIB, MIB

BASE = ("recipe=estimate", "model=gpt2_tiny", "gpu=a100_40gb")


@functools.cache
def composed(*words: str):
    return compose(*BASE, *words).cfg


KEYS = ("estimate.margin", "launch.memory_limit_gib", "batch.effective", "eval.batch")  # which nothing else follows


def config(*words: str, **gpu: Any):
    """A resolved configuration of its own. gpu: other figures of the card."""
    own = [word for word in words if word.startswith(KEYS)]
    made = copy.deepcopy(composed(*(word for word in words if word not in own)))
    for word in own:
        group, key, value = word.replace("=", ".", 1).split(".", 2)
        setattr(getattr(made, group), key, float(value) if "." in value else int(value))
    for key, value in gpu.items():
        setattr(made.gpu, key, value)
    return made


def tally(count: int = 1) -> Tally:
    made = Tally()
    made.put(Operation("mm", MATMUL, "fp32", 2 * 1024**3, 3 * 4 * 1024**2, 1, (1, 1024, 1024, 1024)), "forward", count)
    made.put(Operation("add", ELEMENTWISE, bytes=10**8), "backward", 5)
    made.put(Operation("_to_copy", HOST_COPY, bytes=10**7), "step", 2)
    return made


def demand(reserved_mib: int, missing_mib: int = 0, releases: int = 0, capacity_mib: int = 1000) -> Demand:
    return Demand((reserved_mib - 5) * MIB, reserved_mib * MIB, missing_mib * MIB, releases, capacity_mib * MIB)


def step(**more: Any) -> SimulatedStep:
    values: dict[str, Any] = dict(
        parts={"parameters_bytes": 10, "peak_phase": "step", "peak_tensor_bytes": 60},
        parameter_count=1000,
        samples=32,
        tokens=4096,
        micro_batches=2,
        model_flops=10**11,
        events=[],
        paged_bytes=0,
        tally=tally(),
        model=Model("gpt2_tiny", "GPT2LMHeadModel", trained_parameters=500),
        warnings=["a warning."],
        trace=None,
        demand=demand(300),
    )
    return SimulatedStep(**values | more)


# --- what is left of a card -------------------------------------------------------------------------------------


def test_what_the_allocator_has_is_what_nothing_else_takes():
    cfg = config(memory_bytes=10 * GIB, context_bytes=GIB, nccl_bytes=2 * GIB)
    ranks = config("parallelism=ddp", "parallelism.num_processes=2", memory_bytes=10 * GIB, context_bytes=GIB)
    ranks.gpu.nccl_bytes = 2 * GIB
    assert [prediction.allocator_bytes(each) // GIB for each in (cfg, ranks)] == [9, 7]
    assert [prediction.nccl_bytes(each) for each in (cfg, ranks)] == [0, 2 * GIB]
    assert prediction.allocator_bytes(config("device=cpu")) == UNLIMITED
    assert [prediction.usable_bytes(cfg.gpu, GIB, limit) / GIB for limit in (None, 0.5, 8, 9)] == [8, 0.5, 8, 8]


# --- other rules ------------------------------------------------------------------------------------------------


def test_a_pipeline_is_its_fullest_and_slowest_ranks():
    cfg = config("parallelism=pipeline", "parallelism.num_processes=4", "parallelism.stages=4")
    model = Model("m", "M", layers=12)
    tallies = [tally(count) for count in (1, 2, 3)]
    ranks = [
        step(rank=rank, own_layers=layers, model=model, model_flops=flops, tally=each, demand=needs)
        for rank, layers, flops, each, needs in zip(
            (0, 1, 3), (2, 4, 2), (10, 40, 60), tallies, (demand(300, 10), demand(305), demand(306))
        )
    ]
    seen = fullest_rank.of(cfg, ranks)
    assert (seen.rank, seen.tally, seen.model_flops) == (0, tallies[2], round((10 + 60 + 40 / 4 * 8) / 4))
    assert seen.warnings[-1].startswith(
        "parallelism=pipeline: the memory is that of rank 0 of 4, which needs most, and the time that of rank 3"
    )
    without = [replace(each, demand=None) for each in ranks]
    without[1] = replace(without[1], parts={"peak_tensor_bytes": 61}, model_flops=None)
    seen = fullest_rank.of(cfg, without)
    assert (seen.rank, seen.model_flops, seen.tally) == (1, None, tallies[2])
    assert fullest_rank.of(cfg, ranks[:1]) is ranks[0]


def test_a_step_is_beside_frozen_weights_where_less_than_half_is_trained():
    trained = {
        count: step(model=Model("m", "M", trained_parameters=count)).beside_frozen for count in (None, 1, 499, 500, 501)
    }
    assert trained == {None: False, 1: True, 499: True, 500: False, 501: False}


def test_amds_cards_have_the_rules_of_an_a100():
    cards = [config(link=link, capability="9.4").gpu for link in ("xgmi", "nvlink")]
    assert [gpu.is_amd for gpu in cards] == [True, False]
    assert [gpu.kernel_rules for gpu in cards] == [(8, 0), (9, 4)]


@pytest.mark.parametrize("text, capacity, unknown", [
    ("", 1000, 0),
    ("per_process_memory_fraction:0.5", 500, 0),
    ("per_process_memory_fraction:1.0", 1000, 0),
    ("per_process_memory_fraction:0.75,strange:1", 750, 1),
])  # fmt: skip
def test_a_fraction_of_the_device_limits_the_allocator(text, capacity, unknown, monkeypatch):
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", text)
    limits = limits_of(1000, 1000)
    assert limits.capacity_bytes == capacity
    assert limits.warnings == ["PYTORCH_ALLOC_CONF has strange:1, which the estimate does not model."] * unknown
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert limits_of(10**9, 10**9).settings.expandable_segments
    assert allocator.replay([(0, MIB + 1)], 10**9).peak_reserved_bytes == 20 * MIB


def estimate(verdict: str, fits: bool) -> Estimate:
    return Estimate(fits, MIB, GIB, verdict)


def test_what_was_tried_fits_where_it_was_estimated_so():
    made = Record("estimate", [], {}, "", {})
    assert not tried.Tried(None, "refused").fits and not tried.Tried(made).fits
    assert tried.Tried(made).used_bytes == tried.Tried(None).used_bytes == float("inf")
    for verdict, fits in ((FITS, True), (TIGHT, False), (DOES_NOT_FIT, False)):
        made.estimate = estimate(verdict, verdict == FITS)
        assert tried.Tried(made).fits is fits
    made.memory.device_used_bytes = 7
    assert tried.Tried(made).used_bytes == 7
    with pytest.raises(AssertionError, match="it cannot be"):
        tried.Tried(None, "it cannot be").record  # noqa: B018
