"""What a calibration runs on a GPU and what it makes of the seconds, on tensors without data and seconds that are made
up; as kept values."""

from __future__ import annotations

import types

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from legroom import config
from legroom.errors import Refusal
from legroom.foresight.calibration import gpu_benchmarks
from legroom.machine import gpu_specs, host


def device(option: str = "a100_80gb") -> config.Gpu:
    return config.from_dict(gpu_specs.options()[option], config.Gpu)


def test_a_card_without_figures_is_refused(monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: (host.Gpu("GPU-0", "NVIDIA Nothing", 16 * 2**30, (8, 0)),))
    with pytest.raises(Refusal, match="no figures of NVIDIA Nothing"):
        gpu_benchmarks.measure(lambda _: None)


def test_a_hosts_calls_are_the_median_behind_the_first_two_by_the_number_of_calls(monkeypatch):
    """A clock that stands still but for the calls: ten seconds for each of the first two steps, then one."""
    counts = gpu_benchmarks._calls
    asked: dict[str, dict[str, int]] = {}
    readings = iter([at + number * 100 for number in range(100) for at in (0, 10 if number < 6 else 1)])
    monkeypatch.setattr(gpu_benchmarks, "time", types.SimpleNamespace(perf_counter=lambda: next(readings)))
    monkeypatch.setattr(gpu_benchmarks, "_calls", lambda phases: asked.setdefault("calls", counts(phases)))
    steps: list[object] = []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: steps.append(optimizer))
    found = gpu_benchmarks.call_seconds("cpu")
    hook.remove()
    assert len(steps) == 12 + 1  # the last one to count its calls
    assert found == {phase: 1 / count for phase, count in asked["calls"].items()}
    assert list(found) == ["forward", "backward", "step"] and min(asked["calls"].values()) > 100


def test_a_time_is_the_median_of_events_after_the_warm_up(monkeypatch):
    calls, clock, marks = [], iter([0.0, 0.5, 0.9, 1.0]), iter([*range(1, gpu_benchmarks.REPEATS), 1000])

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            pass

        def elapsed_time(self, end):
            return next(marks)

    for name, value in {"Event": Event, "synchronize": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(gpu_benchmarks, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    assert gpu_benchmarks.seconds_of(lambda: calls.append(1)) == pytest.approx(10.5 / 1000)
    assert len(calls) == 2 + gpu_benchmarks.REPEATS


def test_a_bandwidth_is_at_most_that_of_half_the_seconds():
    gpu = device()
    for kind, seconds in (("elementwise", 1e-3), ("elementwise", 1e-9), ("optimizer", 1e-3)):
        moving = gpu_benchmarks._moving(kind, 3, 2**20)
        assert (moving.bytes, moving.elements) == (12 * 2**20, 2**20)
        found = gpu_benchmarks.bandwidth_of(seconds, moving, gpu)
        most = moving.bytes / (seconds / 2) / (gpu.bandwidth_gb_per_second * 1e9)
        least = most / 2
        assert least * 0.999 <= found <= most * 1.001 and (found == pytest.approx(most)) is (seconds == 1e-9)
