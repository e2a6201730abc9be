"""A fake NVML with any GPUs. Imports nothing of the project, so that any process can start with it."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml


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

    def nvmlDeviceGetHandleByUUID(self, uuid):
        for index, gpu in enumerate(self.gpus):
            if gpu["nvmlDeviceGetUUID"] == uuid:
                return index
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

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
    facts = (
        dict(
            Name=f"NVIDIA Card {index}",
            UUID=f"GPU-{index}",
            CudaComputeCapability=(8, 0),
            MemoryInfo=SimpleNamespace(total=24 * 2**30, used=2**28),
            ComputeRunningProcesses=[],
            Temperature=40,
            PowerManagementLimit=280_000,
            PowerManagementDefaultLimit=280_000,
            CurrentClocksThrottleReasons=0,
            MigMode=[0, 0],
        )
        | changes
    )
    return {f"nvmlDeviceGet{name}": answer for name, answer in facts.items()}
