"""What a calibration runs on a GPU and what it makes of the seconds, on tensors without data and seconds that are made
up; as kept values."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import pytest
import torch
from support.known_values import known
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from legroom import config
from legroom.errors import Refusal
from legroom.foresight.calibration import gpu_benchmarks
from legroom.foresight.speed import calibrated
from legroom.machine import gpu_specs, host, nvml
from legroom.units import MIB


def device(option: str = "a100_80gb") -> config.Gpu:
    return config.from_dict(gpu_specs.options()[option], config.Gpu)


class OnMeta(TorchFunctionMode):
    """What is made on the GPU is made without data."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


class Seen(TorchDispatchMode):
    """Writes down the operations with the shapes of their tensors."""

    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        shapes = [f"{list(one.shape)} {one.dtype}" for one in args if isinstance(one, torch.Tensor)]
        self.lines.append(f"{func.overloadpacket.__name__} {' '.join(shapes)}")
        return result


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """measured(card, seconds) -> (rates, what was shown, operations that were timed): every call takes `seconds`."""
    monkeypatch.setenv(calibrated.FOLDER, str(tmp_path))

    def measure(option: str, seconds: float):
        gpu, timed, shown = device(option), [], []
        card = host.Gpu("GPU-0", gpu.device_name, gpu.memory_bytes, (8, 0))
        used = iter([1000 * MIB, 1500 * MIB])

        def seconds_of(call: Any) -> float:
            with Seen() as seen:
                call()
            timed.append([f"{torch.backends.cuda.matmul.allow_tf32}", *seen.lines])
            return seconds

        cuda = types.SimpleNamespace(
            synchronize=lambda: None,
            memory_reserved=lambda: 20 * MIB,
            CUDAGraph=lambda: types.SimpleNamespace(replay=lambda: None),
            graph=lambda _: contextlib.nullcontext(),
        )
        with monkeypatch.context() as patch, OnMeta():
            patch.setattr(host, "gpus", lambda: (card,))
            patch.setattr(nvml, "used_bytes", lambda uuid: next(used))
            patch.setattr(gpu_benchmarks, "seconds_of", seconds_of)
            patch.setattr(gpu_benchmarks, "call_seconds", lambda: {"forward": 1e-5})
            for name, value in vars(cuda).items():
                patch.setattr(torch.cuda, name, value)
            return gpu_benchmarks.measure(shown.append), shown, timed

    return measure


@pytest.mark.parametrize("option, seconds", [("a100_80gb", 0.004), ("t4_16gb", 0.04)])
def test_a_calibration_runs_large_operations_and_takes_their_share_of_the_sheet(
    option, seconds, measured, data_regression
):
    rates, shown, timed = measured(option, seconds)
    (attention,) = [lines for lines in timed if any("backward" in line for line in lines)]
    assert sum("[4, 16, 4096, 64]" in line for line in attention) > 2
    operations = [lines for lines in timed if lines is not attention]
    kept = {"context_bytes": rates.context_bytes, "efficiencies": rates.efficiencies}
    data_regression.check(known(kept | {"shown": shown, "timed": operations}))
    assert not torch.backends.cuda.matmul.allow_tf32


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
