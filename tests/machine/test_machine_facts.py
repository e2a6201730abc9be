"""What is found of a machine, and what a worker is told of it: made-up cards, files and packages."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from fake_nvml_module import FakeNvml, gpu

from legroom.machine import cgroups, nvml, requirements

# --- cards ---------------------------------------------------------------------------------------

MEMORY = SimpleNamespace(total=100, used=40)
CARDS = [
    gpu(0, UUID=b"GPU-bytes", Name=b"NVIDIA Bytes"),
    gpu(1, CurrentClocksThrottleReasons=0x64, MigMode=[1, 0], PowerManagementLimit=250_500, Temperature=70),
    gpu(2, MemoryInfo=lambda version=None: None if version else MEMORY, CurrentClocksThrottleReasons=0x98),
    gpu(3, MemoryInfo=lambda version=None: SimpleNamespace(total=100, used=5) if version else MEMORY),
    gpu(
        4, ComputeRunningProcesses=[SimpleNamespace(pid=7, usedGpuMemory=None), SimpleNamespace(pid=8, usedGpuMemory=9)]
    ),
    {"nvmlDeviceGetUUID": "GPU-silent"},
]


def test_a_driver_that_is_broken_and_one_that_is_not_there(monkeypatch):
    import pynvml

    for code, broken in (
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, False),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, False),
        (pynvml.NVML_ERROR_UNKNOWN, True),
    ):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpu(), init=code))
        found = nvml.Nvml()
        assert (found.driver.broken, found.cards(), found.driver.version) == (broken, [], None)
        assert (found.driver.error == "no NVIDIA driver") != broken and nvml.find_visible_gpus() == ()


def test_what_a_job_asks_of_one_card(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*CARDS))
    assert nvml.used_bytes("GPU-3") == 5 and nvml.used_bytes("GPU-2") == 40 and nvml.used_bytes("GPU-silent") is None
    assert nvml.compute_process_ids("GPU-4") == [7, 8] and nvml.compute_process_ids("GPU-3") == []
    assert nvml.compute_process_ids("GPU-silent") == []


# --- packages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "version,bound,below",
    [
        ("2.11", "2.11", False), ("2.11", "2.11.0", False), ("2.11.0", "2.11", False), ("2.10.9", "2.11", True),
        ("2.9", "2.11", True), ("2.11rc1", "2.11", False), ("2.11.0+cpu", "2.11.1", True), ("unknown", "2.11", False),
        (None, "2.11", False), ("2.11", None, False), ("3", "2.11", False), ("0+unknown", "2.11", False),
    ],
)  # fmt: skip
def test_which_release_is_older(version, bound, below):
    assert requirements.is_below(version, bound) == below


# --- the host ------------------------------------------------------------------------------------


def test_entries_of_files_with_a_name_and_a_number(tmp_path):
    (tmp_path / "stat").write_text("inactive 5\ninactive_file 7 more\noom_kill x\nlast 9")
    names = {"inactive": 5, "inactive_file": 7, "oom_kill": 0, "last": 9, "file": 0}
    assert {name: cgroups.entry(tmp_path / "stat", name) for name in names} == names
    assert cgroups.entry(tmp_path / "none", "last") == 0
