"""What NVML tells of the GPUs and of the links between them, for the doctor: facts, no judgement."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

# NVML's NVML_TOPOLOGY_* levels, in the words of `nvidia-smi topo -m`
TOPOLOGY = {0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# NVML's nvmlClocksThrottleReason* bits that cost speed under load
THROTTLES = {
    0x04: "its power limit",
    0x08: "the hardware (heat or power)",
    0x20: "its temperature",
    0x40: "its temperature",
    0x80: "its power supply",
}


@dataclass(frozen=True)
class Driver:
    """The driver. `error`: why it shows no GPU; `stuck`: there is a driver, and it does not work."""

    version: str | None = None
    cuda: str | None = None  # the newest CUDA that it knows
    error: str | None = None
    stuck: bool = False


@dataclass(frozen=True)
class Card:
    """A GPU; a fact is None where this card or driver does not tell it."""

    index: int
    uuid: str | None
    name: str | None
    capability: tuple[int, int] | None
    memory_bytes: int | None
    used_bytes: int | None
    processes: tuple[tuple[int, str, int | None], ...]  # pid, name, bytes
    celsius: int | None
    slowdown_celsius: int | None
    shutdown_celsius: int | None
    margin_celsius: int | None  # degrees left until it slows down; newer cards tell this instead
    limit_watts: float | None
    default_watts: float | None
    most_watts: float | None
    throttled_by: tuple[str, ...]  # at this moment
    mig: bool  # cut into several smaller GPUs


class Nvml:
    """NVML, asked by a function's name: None where this card, driver or binding has no answer."""

    def __init__(self):
        self.library, self.driver = None, Driver(error="nvidia-ml-py, which finds GPUs, is missing")
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            # A driver's library without its kernel module is a machine without a GPU: a cluster's front end.
            stuck = error.value not in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
            why = f"NVML says: {str(error).rstrip('.')}" if stuck else "no NVIDIA driver"
            self.driver = Driver(error=why, stuck=stuck)
            return
        self.library = pynvml
        cuda = self("nvmlSystemGetCudaDriverVersion")  # 12040 is 12.4
        self.driver = Driver(
            _text(self("nvmlSystemGetDriverVersion")), f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None
        )

    def __call__(self, function: str, *arguments):
        try:
            return getattr(self.library, function)(*arguments)
        except (AttributeError, self.library.NVMLError):
            return None

    def cards(self) -> list[Card]:
        """Every GPU of the machine, also those that CUDA_VISIBLE_DEVICES hides."""
        count = self("nvmlDeviceGetCount") if self.library else None
        return [self._card(index) for index in range(count or 0)]

    def _card(self, index: int) -> Card:
        pynvml, handle = self.library, self("nvmlDeviceGetHandleByIndex", index)
        memory, capability = self("nvmlDeviceGetMemoryInfo", handle), self("nvmlDeviceGetCudaComputeCapability", handle)
        reasons = self("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        limits = self("nvmlDeviceGetPowerManagementLimitConstraints", handle) or (None, None)
        return Card(
            index=index,
            uuid=_text(self("nvmlDeviceGetUUID", handle)),
            name=_text(self("nvmlDeviceGetName", handle)),
            capability=tuple(capability) if capability else None,
            memory_bytes=int(memory.total) if memory else None,
            used_bytes=int(memory.used) if memory else None,
            processes=tuple(
                (p.pid, self._process_name(p.pid), p.usedGpuMemory)
                for p in self("nvmlDeviceGetComputeRunningProcesses", handle) or []
            ),
            celsius=self("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU),
            slowdown_celsius=self(
                "nvmlDeviceGetTemperatureThreshold", handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            shutdown_celsius=self(
                "nvmlDeviceGetTemperatureThreshold", handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
            ),
            margin_celsius=self("nvmlDeviceGetMarginTemperature", handle),
            limit_watts=_watts(self("nvmlDeviceGetPowerManagementLimit", handle)),
            default_watts=_watts(self("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
            most_watts=_watts(limits[1]),
            throttled_by=tuple(dict.fromkeys(why for bit, why in THROTTLES.items() if reasons & bit)),
            mig=bool((self("nvmlDeviceGetMigMode", handle) or [0])[0]),
        )

    def _process_name(self, pid: int) -> str:
        return Path((_text(self("nvmlSystemGetProcessName", pid)) or "?").split()[0]).name

    def links(self, count: int) -> dict[tuple[int, int], str | None]:
        """How each pair of the first `count` GPUs is linked, as `nvidia-smi topo -m` puts it: NV and the
        number of NVLinks, or else the furthest thing between them on PCIe (PIX, PXB, PHB, NODE, SYS)."""
        handles = [self("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        places = [_place(self("nvmlDeviceGetPciInfo", handle)) for handle in handles]
        ends = [self._nvlink_ends(handle) for handle in handles] if count > 1 else []
        found = {}
        for a, b in itertools.combinations(range(count), 2):
            direct = ends[a].count(places[b]) if places[b] else 0
            # Through an NVSwitch each pair has all links to itself, and their far end is the switch.
            nvlinks = direct or min(ends[a].count("switch"), ends[b].count("switch"))
            level = self("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
            found[a, b] = f"NV{nvlinks}" if nvlinks else TOPOLOGY.get(level)
        return found

    def _nvlink_ends(self, handle) -> list:
        """Where each active NVLink of a GPU leads: a place on PCIe, or 'switch'."""
        ends = []
        for link in range(self.library.NVML_NVLINK_MAX_LINKS):
            if not self("nvmlDeviceGetNvLinkState", handle, link):
                continue
            kind = self("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            ends.append(
                "switch"
                if kind == self.library.NVML_NVLINK_DEVICE_TYPE_SWITCH
                else _place(self("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
            )
        return ends


def _text(value):
    return value.decode() if isinstance(value, bytes) else value  # older bindings give bytes


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _place(pci) -> tuple[int, int, int] | None:
    return None if pci is None else (pci.domain, pci.bus, pci.device)
