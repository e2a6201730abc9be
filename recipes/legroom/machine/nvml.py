"""The only module that calls NVML (package nvidia-ml-py): the GPUs that jobs use, and all facts that the doctor shows.

Imports the standard library alone at the top: the doctor also runs where nothing is installed yet.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from legroom.config.target import Gpu
from legroom.units import MIB

# With more in use than this, another program holds the GPU: an idle one shows less, also where the driver's own counts.
IDLE_GPU_BYTES = 600 * MIB
# NVML's nvmlClocksThrottleReason* bits that reduce speed under load
THROTTLES = {
    0x04: "its power limit",
    0x08: "the hardware (heat or power)",
    0x20: "its temperature",
    0x40: "its temperature",
    0x80: "its power supply",
}


@dataclass(frozen=True)
class Driver:
    """The driver. `error`: why it shows no GPU; `broken`: a driver is installed and does not work."""

    version: str | None = None
    cuda: str | None = None  # the newest CUDA version that it supports
    error: str | None = None
    broken: bool = False


@dataclass(frozen=True)
class Card:
    """All facts about a GPU; None where the card or the driver does not report one."""

    index: int
    uuid: str | None
    name: str | None
    capability: tuple[int, int] | None
    memory_bytes: int | None
    used_bytes: int | None
    processes: tuple[tuple[int, str, int | None], ...]  # pid, name, bytes
    celsius: int | None
    limit_watts: float | None
    default_watts: float | None
    throttled_by: tuple[str, ...]  # at this moment
    mig: bool  # divided into several smaller GPUs


# --- what a job asks ---------------------------------------------------------------------------------


def find_visible_gpus() -> tuple[Gpu, ...]:
    """As `visible_gpus`; empty without nvidia-ml-py, without a driver, or where NVML lacks a figure that jobs need."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        return visible_gpus()
    except pynvml.NVMLError:
        return ()


def visible_gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES lists, in its order; without the variable all.

    Raises ImportError without nvidia-ml-py, and pynvml.NVMLError where a query fails.
    """
    pynvml = _load()
    gpus = [_gpu(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(gpus)
    chosen = []
    for entry in visible.split(","):
        gpu = _named_by(entry.strip(), gpus)
        if gpu is None:  # CUDA, too, stops at the first entry that it does not know
            break
        chosen.append(gpu)
    return tuple(chosen)


def _named_by(entry: str, gpus: list[Gpu]) -> Gpu | None:
    """The GPU that an entry of CUDA_VISIBLE_DEVICES names: by its number, or by the beginning of its UUID."""
    if not entry:
        return None
    for i, gpu in enumerate(gpus):
        if str(i) == entry or gpu.uuid.startswith(entry):
            return gpu
    if entry.startswith("MIG-"):  # an instance of a divided GPU has its own handle
        return _gpu(_load().nvmlDeviceGetHandleByUUID(entry))
    return None


def used_bytes(uuid: str) -> int | None:
    """Memory in use on a GPU, by all processes together; None for a GPU that shares the host's memory."""
    queries = Nvml()
    return queries.used_bytes(queries.query("nvmlDeviceGetHandleByUUID", uuid))


def compute_process_ids(uuid: str) -> list[int]:
    """Ids of the processes that compute on a GPU; empty where NVML does not report them (most containers)."""
    queries = Nvml()
    handle = queries.query("nvmlDeviceGetHandleByUUID", uuid)
    return [process.pid for process in queries.query("nvmlDeviceGetComputeRunningProcesses", handle) or []]


def _load() -> ModuleType:
    """pynvml, initialized. Raises ImportError or pynvml.NVMLError."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def _gpu(handle: Any) -> Gpu:
    pynvml = _load()
    uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    whole = handle
    if uuid.startswith("MIG-"):
        whole = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    try:
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError_NotSupported:  # a GPU that shares the host's memory
        import psutil

        memory_bytes = psutil.virtual_memory().total
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(whole)
    return Gpu(uuid, _text(pynvml.nvmlDeviceGetName(handle)), memory_bytes, (major, minor))


# --- what the doctor asks ------------------------------------------------------------------------------


class Nvml:
    """Queries that return None where the card, the driver or nvidia-ml-py does not support them."""

    def __init__(self) -> None:
        self.library: Any = None
        self.driver = Driver(error="nvidia-ml-py, which finds GPUs, is missing")
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            # The driver's library without its kernel module: a machine without a GPU, such as a cluster's login node.
            code = getattr(error, "value", None)
            if code in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
                self.driver = Driver(error="no NVIDIA driver")
            else:
                self.driver = Driver(error=f"NVML says: {str(error).rstrip('.')}", broken=True)
            return
        self.library = pynvml
        cuda = self.query("nvmlSystemGetCudaDriverVersion")  # 12040 is 12.4
        newest = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None
        self.driver = Driver(_text(self.query("nvmlSystemGetDriverVersion")), newest)

    def query(self, function: str, *arguments: Any) -> Any:
        """Call a function of pynvml by its name; None where it is missing or raises NVMLError."""
        try:
            return getattr(self.library, function)(*arguments)
        except (AttributeError, self.library.NVMLError):
            return None

    def cards(self) -> list[Card]:
        """Every GPU of the machine, also those that CUDA_VISIBLE_DEVICES hides."""
        if self.library is None:
            return []
        return [self._card(index) for index in range(self.query("nvmlDeviceGetCount") or 0)]

    def _card(self, index: int) -> Card:
        handle = self.query("nvmlDeviceGetHandleByIndex", index)
        memory = self.query("nvmlDeviceGetMemoryInfo", handle)
        capability = self.query("nvmlDeviceGetCudaComputeCapability", handle)
        throttling = self.query("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        reasons = [reason for bit, reason in THROTTLES.items() if throttling & bit]
        processes = []
        for process in self.query("nvmlDeviceGetComputeRunningProcesses", handle) or []:
            processes.append((process.pid, self._process_name(process.pid), process.usedGpuMemory))
        mig_modes = self.query("nvmlDeviceGetMigMode", handle)  # (now, after the next reset)
        return Card(
            index=index,
            uuid=_text(self.query("nvmlDeviceGetUUID", handle)),
            name=_text(self.query("nvmlDeviceGetName", handle)),
            capability=(capability[0], capability[1]) if capability else None,
            memory_bytes=int(memory.total) if memory else None,
            used_bytes=self.used_bytes(handle),
            processes=tuple(processes),
            celsius=self.query("nvmlDeviceGetTemperature", handle, self.library.NVML_TEMPERATURE_GPU),
            limit_watts=_watts(self.query("nvmlDeviceGetPowerManagementLimit", handle)),
            default_watts=_watts(self.query("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
            throttled_by=tuple(dict.fromkeys(reasons)),
            mig=bool(mig_modes and mig_modes[0]),
        )

    def used_bytes(self, handle: Any) -> int | None:
        """Memory in use on a GPU, as nvidia-smi shows it; None where the GPU shares the host's memory.

        The first version of NVML's answer counts as used also what the driver keeps for itself: 0.6 GiB of an H200
        that nobody uses. Old drivers have no other.
        """
        answer = self.query("nvmlDeviceGetMemoryInfo", handle, self.library.nvmlMemory_v2)
        answer = answer or self.query("nvmlDeviceGetMemoryInfo", handle)
        return int(answer.used) if answer else None

    def _process_name(self, pid: int) -> str:
        return Path((_text(self.query("nvmlSystemGetProcessName", pid)) or "?").split()[0]).name


def _text(value: Any) -> Any:
    if isinstance(value, bytes):  # from older releases of nvidia-ml-py
        return value.decode()
    return value


def _watts(milliwatts: int | None) -> float | None:
    if milliwatts is None:
        return None
    return milliwatts / 1000
