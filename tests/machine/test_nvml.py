"""GPUs: what NVML tells, and what the doctor makes of it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pynvml
import pytest
from fake_nvml import GIB, FakeNvml, gpu, healthy, process, rows, visit  # noqa: F401

from legroom.machine import host, nvml
from legroom.machine.nvml import Nvml
from legroom.units import MIB

# --- GPUs ------------------------------------------------------------------------------------------


def test_two_healthy_gpus_are_described_and_nothing_is_broken(visit):
    text, broken = visit(FakeNvml(gpu(0), gpu(1)))
    words = rows(text)
    assert not broken and text.endswith("Nothing is broken.")
    for part in (
        "580.65.06 CUDA up to 13.0",
        "GPU 0: NVIDIA Card 0",
        "GPU 1: NVIDIA Card 1",
        "24.0 GiB, 0.2 GiB of it in use",
        "280 W at most, 40 C",
        "uses it as cuda:0",
        "uses it as cuda:1",
        "8-bit AdamW works on cuda:0, cuda:1",
        "built for CUDA 13.0",
    ):
        assert part in words, part
    assert "HOT" not in words and "slowed down" not in words and "in use by" not in words


@pytest.mark.parametrize(
    "capability,have,lack",
    [
        ((7, 5), [], ["tf32 (from 8.0)", "bf16 (from 8.0)", "fp8 (from 8.9)", "flash attention 2 (from 8.0)"]),
        ((8, 6), ["tf32", "bf16", "flash attention 2"], ["fp8 (from 8.9)"]),
        ((8, 9), ["tf32", "bf16", "fp8", "flash attention 2"], []),
        ((12, 0), ["tf32", "bf16", "fp8", "flash attention 2"], []),
    ],
)
def test_what_a_capability_supports(visit, monkeypatch, capability, have, lack):
    versions = host.version
    monkeypatch.setattr(host, "version", lambda name: "2.8" if name == "flash-attn" else versions(name))
    text, _ = visit(FakeNvml(gpu(CudaComputeCapability=capability)))
    parts = []
    if have:
        parts.append(", ".join(have))
    if lack:
        parts.append("not " + ", ".join(lack))
    assert f"compute capability {capability[0]}.{capability[1]}: {'; '.join(parts)} power and heat" in rows(text)


@pytest.mark.parametrize("capability,offered", [((8, 0), True), ((7, 0), False)])
def test_flash_attention_is_offered_where_it_runs(visit, monkeypatch, capability, offered):
    versions = host.version
    monkeypatch.setattr(host, "version", lambda name: None if name == "flash-attn" else versions(name))
    text, _ = visit(FakeNvml(gpu(CudaComputeCapability=capability)))
    assert ("pip install flash-attn --no-build-isolation" in text) == offered
    assert ("(once flash-attn is installed)" in rows(text)) == offered


@pytest.mark.parametrize("celsius,hot", [(79, False), (80, True), (92, True)])
def test_a_hot_card_is_named(visit, celsius, hot):
    words = rows(visit(FakeNvml(gpu(Temperature=celsius)))[0])
    assert f"{celsius} C" in words and (f"{celsius} C (HOT)" in words) == hot


def test_a_power_limit_below_the_default_is_named(visit):
    words = rows(visit(FakeNvml(gpu(), gpu(1, PowerManagementLimit=200_000)))[0])
    assert "280 W at most, 40 C" in words and "200 W at most, below its default of 280 W, 40 C" in words


@pytest.mark.parametrize(
    "bits,words",
    [
        (pynvml.nvmlClocksThrottleReasonSwPowerCap, "by its power limit"),
        (
            pynvml.nvmlClocksThrottleReasonHwThermalSlowdown | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
            "by its temperature",
        ),
        (pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown, "by its power supply"),
        (pynvml.nvmlClocksThrottleReasonHwSlowdown, "by the hardware"),
    ],
)
def test_a_throttled_card_says_by_what(visit, bits, words):
    text = rows(visit(FakeNvml(gpu(CurrentClocksThrottleReasons=bits)))[0])
    assert f"slowed down at this moment, {words}" in text and "and its temperature" not in text


def test_an_idle_card_is_not_called_throttled(visit):
    idle = gpu(CurrentClocksThrottleReasons=pynvml.nvmlClocksThrottleReasonGpuIdle)
    assert "slowed down" not in visit(FakeNvml(idle))[0]


def test_processes_that_hold_a_gpu_are_named(visit):
    words = rows(visit(FakeNvml(gpu(ComputeRunningProcesses=[process(12, 3 * GIB), process(13, None)])))[0])
    assert "in use by program12 (pid 12, 3.0 GiB), program13 (pid 13):" in words


def test_memory_held_by_nobody_with_a_name_is_told(visit):
    words = rows(visit(FakeNvml(gpu(MemoryInfo=SimpleNamespace(total=24 * GIB, used=5 * GIB))))[0])
    assert "5.0 GiB of it in use" in words and "programs that NVML does not name" in words


@pytest.mark.parametrize("driver,used", [("new", 0), ("old", 700)])
def test_memory_of_the_driver_is_not_in_use(visit, driver, used):
    def memory(version=None):
        if version and driver == "old":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=24 * GIB, used=0 if version else 700 * MIB)

    words = rows(visit(FakeNvml(gpu(MemoryInfo=memory)))[0])
    assert f"{used * MIB / GIB:.1f} GiB of it in use" in words
    assert ("programs that NVML does not name" in words) == bool(used)
    assert nvml.used_bytes("GPU-0") == used * MIB


def test_a_lost_card_is_no_crash(visit):
    text, broken = visit(FakeNvml({}, {}), probes={"torch": {"cuda": "13.0"}})
    for fact in ("memory", "supports", "power and heat"):
        assert rows(text).count(f"{fact} not available") == 2, fact
    assert len(broken) == 1 and "no job can start" in broken[0] and "Not Supported" in broken[0]


def test_a_card_with_only_its_name_and_capability_is_usable(visit):
    facts = {
        f"nvmlDeviceGet{name}": gpu()[f"nvmlDeviceGet{name}"]
        for name in ("Name", "UUID", "CudaComputeCapability", "MemoryInfo")
    }
    text, broken = visit(FakeNvml(facts))
    assert not broken and "power and heat not available" in rows(text)


def test_without_the_binding_no_gpu_is_found_and_the_doctor_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = Nvml()
    assert nvml.find_visible_gpus() == () and found.cards() == []
    assert found.driver.error == "nvidia-ml-py, which finds GPUs, is missing" and not found.driver.broken


def test_a_binding_that_lacks_a_function_has_no_answer(monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetCount")
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    assert Nvml().cards() == []


def test_mig_is_told_and_its_slices_are_not_counted_against_torch(visit):
    nvml = FakeNvml(gpu(0, MigMode=[1, 1]), gpu(1))
    text, broken = visit(nvml, healthy(1))
    assert "one slice of it (MIG is on)" in rows(text) and not broken
