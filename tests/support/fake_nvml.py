"""A fake NVML with any GPUs, and what the doctor reports of such a machine."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pynvml
import pytest

from recipes.doctor import checks, faults, page, probe
from recipes.machine import host
from recipes.units import GIB


class FakeNvml:
    """pynvml with these GPUs: function -> answer, or a function of its further arguments. All else is not supported."""

    def __init__(self, *gpus: dict, system: dict | None = None, init: int | None = None):
        self.gpus, self.init = gpus, init
        self.system = {
            "nvmlSystemGetDriverVersion": "580.65.06",
            "nvmlSystemGetCudaDriverVersion": 13000,
            "nvmlSystemGetProcessName": lambda pid: f"/usr/bin/program{pid} --flag",
        } | (system or {})

    def nvmlInit(self):
        if self.init is not None:
            raise pynvml.NVMLError(self.init)

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def __getattr__(self, name):
        if not name.startswith(("nvmlDevice", "nvmlSystem")):
            return getattr(pynvml, name)  # the real constants and errors

        def answer(*arguments):
            table, rest = (
                (self.gpus[arguments[0]], arguments[1:]) if name.startswith("nvmlDevice") else (self.system, arguments)
            )
            if name not in table:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return table[name](*rest) if callable(table[name]) else table[name]

        return answer


def gpu(index: int = 0, **changes) -> dict:
    """A TITAN-like card in good order; changes without the 'nvmlDeviceGet' of NVML's names."""
    thresholds = {pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: 91, pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: 94}
    facts = (
        dict(
            Name=f"NVIDIA Card {index}",
            UUID=f"GPU-{index}",
            CudaComputeCapability=(8, 0),
            MemoryInfo=SimpleNamespace(total=24 * GIB, used=GIB // 4),
            ComputeRunningProcesses=[],
            Temperature=40,
            TemperatureThreshold=lambda which: thresholds[which],
            PowerManagementLimit=280_000,
            PowerManagementDefaultLimit=280_000,
            PowerManagementLimitConstraints=(100_000, 320_000),
            CurrentClocksThrottleReasons=0,
            MigMode=[0, 0],
            PciInfo=place(index),
            TopologyCommonAncestor=pynvml.NVML_TOPOLOGY_HOSTBRIDGE,
        )
        | changes
    )
    return {f"nvmlDeviceGet{name}": answer for name, answer in facts.items()}


def place(index: int) -> SimpleNamespace:
    return SimpleNamespace(domain=0, bus=0x10 + index, device=0)


def nvlinked(index: int, *ends: int, switch: bool = False) -> dict:
    """A card with an NVLink to each of `ends`, or as many to a switch."""
    kind = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    return gpu(
        index,
        NvLinkState=lambda link: int(link < len(ends)),
        NvLinkRemoteDeviceType=lambda link: kind,
        NvLinkRemotePciInfo=lambda link: place(99 if switch else ends[link]),
    )


def healthy(count: int, **changes) -> dict:
    """What the probes return on a machine with a CUDA torch and that many GPUs."""
    results = {"torch": {"cuda": "13.0"}, "torch on CUDA": {"count": count}, "bitsandbytes": {}}
    for n in range(count):
        results |= {f"torch on cuda:{n}": {"name": f"NVIDIA Card {n}"}, f"bitsandbytes on cuda:{n}": {}}
    return results | changes


@pytest.fixture
def visit(monkeypatch):
    """visit(nvml, probes) -> (page, what is broken): the doctor on that machine; probes=None: all is well.

    cuda: torch is a CUDA build. visible: CUDA_VISIBLE_DEVICES.
    """

    def visit(nvml, probes=None, cuda=True, visible=None):
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(host, "torch_has_cuda", lambda: cuda)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        host.gpus.cache_clear()
        results = healthy(len(nvml.gpus)) if probes is None else probes
        monkeypatch.setattr(probe, "run", lambda code: results if "devices(" in code else {})
        found = checks.examine()
        text = "\n".join(line for line, _ in page.page(found).lines)
        assert all(len(line) <= 80 for line in text.splitlines()), text
        return text, faults.broken(found)

    yield visit
    host.gpus.cache_clear()


def rows(text: str) -> str:
    """The page as one line, so that a test need not know where it wraps."""
    return " ".join(text.split())


def process(pid: int, size: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=size)
