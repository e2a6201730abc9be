"""What scripts/calibrate.py measures of a CPU, with tensors so small that it takes a moment."""

from __future__ import annotations

import pytest
import torch

from legroom.foresight.calibration import cpu_benchmarks, cpu_probes
from legroom.foresight.speed import cpu
from legroom.units import MIB


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(cpu_probes, "POOL", 2**16)
    monkeypatch.setattr(cpu_probes, "ATTENDING", ((1, 2, 64),))
    monkeypatch.setattr(cpu_probes, "SIDES", (64, 128))
    monkeypatch.setattr(cpu_probes, "BATCHED", [(1, 64, 64, 64)])
    monkeypatch.setattr(cpu_benchmarks, "SIZES", (2**6, 2**14))
    monkeypatch.setattr(cpu_benchmarks, "CACHES", 4096)
    monkeypatch.setattr(cpu_benchmarks, "ROUNDS", 2)
    monkeypatch.setattr(cpu_benchmarks, "call_seconds", lambda: {"forward": 1e-5, "backward": 5e-6, "step": 1e-5})


def test_operations_are_measured_under_the_names_that_an_estimate_looks_for(small):
    shown = []
    rates = cpu_benchmarks.measure(shown.append)
    assert len(shown) == 2
    for dtype in ("fp32", "bf16"):
        for name in ("mul", "mul_", "clone", "_to_copy", "native_layer_norm", "sum", "embedding_dense_backward"):
            points = rates.operations[f"{name} {dtype}"]
            assert points == sorted(points) and all(seconds > 0 for _, seconds in points)
        assert {f"{other} {dtype}" for other in cpu.LIKE.values()} <= set(rates.operations)
        for layout in cpu_probes.LAYOUTS:
            shapes = {point[:3] for point in rates.products[f"{dtype} {layout}"]}
            assert len(shapes) == 8 and all(rate > 0 for *_, rate in rates.products[f"{dtype} {layout}"])
            assert [point[:3] for point in rates.batched[f"{dtype} {layout}"]] == [(64, 64, 64)]
        assert any(key.endswith(dtype) for key in rates.attention)
    table = rates.operations["embedding_dense_backward fp32"]
    assert table[0][0] < table[-1][0]  # by the size of the table, whose gradient is written whole


def test_a_probe_finds_only_its_first_argument_in_the_cache(monkeypatch):
    monkeypatch.setattr(cpu_benchmarks, "CACHES", 4096)
    seen, made = [], torch.ones(4)
    watch = cpu_benchmarks.Stopwatch()
    probe = cpu_probes.Probe(lambda: seen.append(watch._filler[0].item()), made)
    watch.time(("a",), probe)
    assert seen == [1.0] and len(watch.times["a",]) == 1
    watch.time(("a",), probe)  # short: twice a round, each time with the caches emptied anew
    assert seen == [1.0, 2.0, 3.0]
    watch.time(("b",), probe, cold=False)
    assert seen[-2:] == [3.0, 3.0] and len(watch.times["b",]) == 1  # once before, which is not counted
    watch.round, watch.times["c",] = 1, [1.0]
    watch.time(("c",), probe)  # long: in every second round
    assert watch.times["c",] == [1.0]


def test_memory_that_is_touched_for_the_first_time_by_hand(monkeypatch):
    seconds = iter([0.3, 0.1])  # 64 MiB that are new, and 64 MiB that were there
    monkeypatch.setattr(cpu_benchmarks, "seconds_of", lambda call: next(seconds))
    assert cpu_benchmarks.fault_seconds() == pytest.approx(0.2 / (64 * MIB))


def test_sizes_of_operations_reach_from_the_call_itself_to_what_no_cache_holds():
    assert list(cpu_benchmarks.SIZES) == sorted(cpu_benchmarks.SIZES)
    assert 4 * cpu_benchmarks.SIZES[0] <= 256 and 4 * cpu_benchmarks.SIZES[-1] >= 64 * MIB


def test_the_operation_of_a_call_has_the_type_that_was_asked_for():
    x = torch.ones(8)
    assert cpu_benchmarks.operation_of(lambda: torch.zeros_like(x, dtype=torch.bfloat16)).bytes == 8 * 4 + 8 * 2
    assert cpu_benchmarks.operation_of(lambda: x.sum(dtype=torch.float64)).bytes == 8 * 4 + 8
