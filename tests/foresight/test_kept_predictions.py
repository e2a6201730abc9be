"""What becomes of simulated steps that are made up: the figures of the record, the verdict and every note."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import Any

import pytest
from conftest import compose

from legroom.foresight import fullest_rank, largest_batch, prediction, simulation, tried
from legroom.foresight.memory import allocator
from legroom.foresight.memory.allocator import Demand
from legroom.foresight.memory.settings import UNLIMITED, limits_of
from legroom.foresight.simulation import SimulatedStep
from legroom.foresight.speed import calibrated
from legroom.foresight.speed.operation_names import ELEMENTWISE, HOST_COPY, MATMUL
from legroom.foresight.speed.operations import Operation, Tally
from legroom.foresight.uneven_lengths import DrawnSteps, FirstSteps, UnevenLengths
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


def drawn(lacking_mib: int, padding: float, *free_mib: int) -> DrawnSteps:
    return DrawnSteps(24, [], padding, [demand(each) for each in free_mib], lacking_mib * MIB)


def lengths(*demands: Demand, lacking=0, padding=0.0, expandable=300, free=(310, 305)) -> UnevenLengths:
    return UnevenLengths(drawn(lacking, padding, *free), list(demands), demand(expandable))


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


UNEVEN = [demand(310), demand(330, releases=1), demand(320)]


def steps() -> dict[str, tuple[Any, SimulatedStep]]:
    """What they are -> configuration and step."""
    return {
        "fits": (config(), step()),
        "on a cpu": (config(), step(demand=None)),
        "fits with what is kept": (config("estimate.margin=0.1"), step(demand=demand(1000, capacity_mib=1100))),
        "is tight by a byte": (
            config("estimate.margin=0.1"),
            step(demand=replace(demand(1000), capacity_bytes=1100 * MIB - 1, releases=1)),
        ),
        "fits exactly without a margin": (config("estimate.margin=0"), step(demand=demand(1000))),
        "is tight without a byte": (config(), step(demand=demand(1000, releases=2))),
        "does not fit": (config(), step(demand=demand(1200, 200))),
        "does not fit the card": (config(memory_bytes=1200 * MIB), step(demand=demand(1300, 600, capacity_mib=10**6))),
        "does not fit, of unknown phase": (config("compile=true"), step(parts={}, demand=demand(1200, 200))),
        "as compiled": (config("compile=true"), step(demand=demand(900), error_share=0.3)),
        "as compiled, of a larger margin": (config("estimate.margin=0.4"), step(demand=demand(900), error_share=0.3)),
        "of many ranks": (config("parallelism=ddp", "parallelism.num_processes=4"), step()),
        "of dp": (config("parallelism=dp", "parallelism.num_processes=4"), step()),
        "on the host": (
            config("parallelism=zero", "parallelism.num_processes=2", "parallelism.offload=optimizer"),
            step(),
        ),
        "of fsdp on the host": (
            config("parallelism=fsdp", "parallelism.num_processes=2", "parallelism.cpu_offload=true"),
            step(),
        ),
        "paged, with room": (config(), step(paged_bytes=100 * MIB)),
        "paged, beyond the card": (config(memory_bytes=800 * MIB), step(paged_bytes=400 * MIB)),
        "paged, some homeless": (config("launch.memory_limit_gib=0.35"), step(paged_bytes=100 * MIB)),
        "paged, all homeless": (config("launch.memory_limit_gib=0.28"), step(paged_bytes=10 * MIB)),
        "of a model without flops": (config(), step(model_flops=None)),
        "beside frozen weights": (config(), step(model=Model("m", "M", trained_parameters=499))),
        "all trained": (config(), step(model=Model("m", "M"))),
        "first steps": (config(), step(first_steps=FirstSteps([tally(4), tally(8)], 5000))),
        "compiled": (config("compile=true"), step(first_steps=FirstSteps([tally(4)], 5000))),
        "uneven": (config(), step(lengths=lengths(*UNEVEN), drawn=drawn(0, 0.0, 310))),
        "uneven, padded": (
            config(),
            step(
                lengths=lengths(demand(290, releases=3), demand(350, 20), lacking=40, padding=0.05, expandable=340),
                drawn=drawn(40, 0.05, 310),
            ),
        ),
        "uneven, grouped": (
            config("data=text", "data.path=x.jsonl", "data.group_by_length=true"),
            step(lengths=lengths(demand(330), demand(330), padding=0.5, expandable=331), drawn=drawn(0, 0.5, 310)),
        ),
        "uneven, hardly padded": (
            config(),
            step(lengths=lengths(demand(300), padding=0.049, expandable=300), drawn=drawn(0, 0.049, 310)),
        ),
        "uneven, tight by what orders lack": (
            config("estimate.margin=0.1"),
            step(
                demand=demand(900),
                lengths=lengths(demand(950), lacking=50, free=(920, 960), expandable=950),
                drawn=drawn(50, 0.0, 310),
            ),
        ),
        "uneven, beyond the capacity": (
            config(),
            step(lengths=lengths(demand(1100, capacity_mib=400), demand(390, 5)), drawn=drawn(0, 0.0, 310)),
        ),
        "uneven, without room for the longest": (
            config(),
            step(demand=demand(1200, 200), lengths=lengths(*UNEVEN), drawn=drawn(0, 0.0, 310)),
        ),
        "unknown settings": (config(), step(unknown_settings=["a setting."])),
        "of rank 3": (config(), step(rank=3)),
    }


# --- what is left of a card -------------------------------------------------------------------------------------


def test_what_the_allocator_has_is_what_nothing_else_takes():
    cfg = config(memory_bytes=10 * GIB, context_bytes=GIB, nccl_bytes=2 * GIB)
    ranks = config("parallelism=ddp", "parallelism.num_processes=2", memory_bytes=10 * GIB, context_bytes=GIB)
    ranks.gpu.nccl_bytes = 2 * GIB
    assert [prediction.allocator_bytes(each) // GIB for each in (cfg, ranks)] == [9, 7]
    assert [prediction.nccl_bytes(each) for each in (cfg, ranks)] == [0, 2 * GIB]
    assert prediction.allocator_bytes(config("device=cpu")) == UNLIMITED
    assert [prediction.usable_bytes(cfg.gpu, GIB, limit) / GIB for limit in (None, 0.5, 8, 9)] == [8, 0.5, 8, 8]


@pytest.mark.parametrize("typed, here, found", [
    (False, None, (450, False)), (False, 400, (400, True)), (True, 400, (700, False)), (True, None, (700, False)),
])  # fmt: skip
def test_the_context_that_was_typed_or_measured_stands_over_the_menus(typed, here, found, tmp_path, monkeypatch):
    monkeypatch.setenv(calibrated.FOLDER, str(tmp_path))
    gpu = config(**({"context_bytes": 700 * MIB} if typed else {})).gpu
    if here is not None:
        calibrated.write(calibrated.GpuRates(gpu.device_name, "2.13", "2026-01-01", {}, here * MIB))
    assert prediction.context(gpu) == (found[0] * MIB, found[1])
    if here is not None:
        calibrated.write(calibrated.GpuRates(gpu.device_name, "2.13", "2026-01-01", {}, None))
        assert prediction.context(gpu)[0] == (700 if typed else 450) * MIB
    calibrated._read.cache_clear()


# --- evaluations ------------------------------------------------------------------------------------------------


# --- other rules ------------------------------------------------------------------------------------------------


def test_the_ranks_of_a_pipeline_that_are_simulated():
    cfg, found = config(), []
    for stages in (None, 1, 2, 3, 4):
        setattr(cfg.parallelism, "stages", stages)  # noqa: B010  # None: no pipeline
        found.append(fullest_rank.simulated_ranks(cfg))
    assert found == [[0], [0], [0, 1], [0, 1, 2], [0, 1, 3]]


def test_a_pipeline_has_the_memory_of_its_fullest_rank_and_the_work_of_its_slowest():
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


def test_a_step_that_cannot_have_its_samples_says_so():
    assert simulation._too_few(8, 8) == simulation._too_few(9, 8) == []
    (line,) = simulation._too_few(1000, 1001)
    assert "to have 1,001 samples, and there are 1,000 to train on" in line


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


@pytest.mark.parametrize(
    "effective, most, batch, steps", [(12, 12, 12, 1), (12, 5, 4, 3), (12, 1, 1, 12), (7, 6, 1, 7)]
)
def test_the_largest_batch_is_the_largest_divisor_that_fits(effective, most, batch, steps, monkeypatch, tmp_path):
    def simulate(cfg, folder, capacity, **more):
        assert cfg.batch.per_device * cfg.accumulation.steps == effective and more == {"draw_lengths": True}
        assert (folder, capacity) == (str(tmp_path), prediction.allocator_bytes(cfg))
        needed = 100 + cfg.batch.per_device
        return step(demand=demand(needed, max(0, cfg.batch.per_device - most), capacity_mib=40_000))

    monkeypatch.setattr(simulation, "simulate_step", simulate)
    found = largest_batch.largest(config(f"batch.effective={effective}"), str(tmp_path))
    assert found["batch"] == batch
    said = f"batch.per_device={batch} in {steps} step{'s' if steps > 1 else ''}, the largest"
    assert found["reason"].startswith(said) and ("would miss" in found["reason"]) == (batch < effective)


def test_no_batch_at_all_is_a_refusal(monkeypatch, tmp_path):
    monkeypatch.setattr(simulation, "simulate_step", lambda *_, **__: step(demand=demand(99, 1)))
    found = largest_batch.largest(config("batch.effective=4"), str(tmp_path))
    assert set(found) == {"refused"} and "1 MiB missing" in found["refused"]
