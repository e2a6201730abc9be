"""nvidia-smi for the emulated device: the table, `-L`, and `--query-gpu=... --format=csv`.

It asks NVML, and so the device itself. It runs on its own, with no package around it.
"""

from __future__ import annotations

import ctypes
import sys
from datetime import datetime

MIB = 1024**2


class Nvml:
    """The calls that are needed here."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")

    def text(self, function: str, *arguments: object) -> str:
        buffer = ctypes.create_string_buffer(256)
        getattr(self.library, function)(*arguments, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode()

    def number(self, function: str, *arguments: object) -> int:
        value = ctypes.c_uint()
        getattr(self.library, function)(*arguments, ctypes.byref(value))
        return value.value

    def handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def memory(self, handle: ctypes.c_void_p) -> tuple[int, int, int]:
        """Total, free and used, in bytes."""
        values = (ctypes.c_ulonglong * 3)()
        self.library.nvmlDeviceGetMemoryInfo(handle, values)
        return values[0], values[1], values[2]

    def capability(self, handle: ctypes.c_void_p) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"


def properties(nvml: Nvml, index: int, count: int) -> dict[str, tuple[str, str]]:
    """Field -> (value, unit), by the names that `nvidia-smi --help-query-gpu` gives."""
    handle = nvml.handle(index)
    total, free, used = nvml.memory(handle)
    graphics, memory_clock = 0, 2  # nvmlClockType_t
    limit = nvml.number("nvmlDeviceGetPowerManagementLimit", handle) / 1000
    temperature = nvml.number("nvmlDeviceGetTemperature", handle, ctypes.c_int(0))
    fields: dict[str, tuple[object, str]] = {
        "timestamp": (datetime.now().strftime("%Y/%m/%d %H:%M:%S.000"), ""),
        "driver_version": (nvml.text("nvmlSystemGetDriverVersion"), ""),
        "count": (count, ""),
        "name": (nvml.text("nvmlDeviceGetName", handle), ""),
        "index": (index, ""),
        "uuid": (nvml.text("nvmlDeviceGetUUID", handle), ""),
        "serial": ("[N/A]", ""),
        "compute_cap": (nvml.capability(handle), ""),
        "compute_mode": ("Default", ""),
        "persistence_mode": ("Enabled", ""),
        "display_active": ("Disabled", ""),
        "mig.mode.current": ("[N/A]", ""),
        "pstate": ("P0", ""),
        "fan.speed": (0, "%"),
        "memory.total": (total // MIB, "MiB"),
        "memory.reserved": (0, "MiB"),
        "memory.used": (used // MIB, "MiB"),
        "memory.free": (free // MIB, "MiB"),
        "utilization.gpu": (0, "%"),
        "utilization.memory": (0, "%"),
        "temperature.gpu": (temperature, ""),
        "power.draw": (f"{nvml.number('nvmlDeviceGetPowerUsage', handle) / 1000:.2f}", "W"),
        "power.limit": (f"{limit:.2f}", "W"),
        "power.max_limit": (f"{limit:.2f}", "W"),
        "enforced.power.limit": (f"{limit:.2f}", "W"),
        "clocks.sm": (nvml.number("nvmlDeviceGetClockInfo", handle, ctypes.c_int(graphics)), "MHz"),
        "clocks.mem": (nvml.number("nvmlDeviceGetClockInfo", handle, ctypes.c_int(memory_clock)), "MHz"),
        "clocks.max.sm": (nvml.number("nvmlDeviceGetMaxClockInfo", handle, ctypes.c_int(graphics)), "MHz"),
        "clocks.max.mem": (nvml.number("nvmlDeviceGetMaxClockInfo", handle, ctypes.c_int(memory_clock)), "MHz"),
        "pci.bus_id": (f"00000000:{index + 1:02X}:00.0", ""),
        "pcie.link.gen.current": (nvml.number("nvmlDeviceGetCurrPcieLinkGeneration", handle), ""),
        "pcie.link.gen.max": (nvml.number("nvmlDeviceGetMaxPcieLinkGeneration", handle), ""),
        "pcie.link.width.current": (nvml.number("nvmlDeviceGetCurrPcieLinkWidth", handle), ""),
        "pcie.link.width.max": (nvml.number("nvmlDeviceGetMaxPcieLinkWidth", handle), ""),
    }
    aliases = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "clocks.gr": "clocks.sm",
               "clocks.current.sm": "clocks.sm", "clocks.current.memory": "clocks.mem",
               "power.draw.instant": "power.draw", "power.draw.average": "power.draw",
               "clocks.current.graphics": "clocks.sm", "clocks.max.graphics": "clocks.sm"}  # fmt: skip
    for alias, name in aliases.items():
        fields[alias] = fields[name]
    return {name: (str(value), unit) for name, (value, unit) in fields.items()}


def query(nvml: Nvml, cards: list[int], count: int, wanted: list[str], layout: list[str]) -> str:
    """The lines of `--query-gpu`."""
    units = "nounits" not in layout
    lines = []
    for position, index in enumerate(cards):
        known = properties(nvml, index, count)
        for name in wanted:
            if name not in known:
                raise SystemExit(f'Field "{name}" is not a valid field to query.')
        if position == 0 and "noheader" not in layout:
            titles = [f"{name} [{known[name][1]}]" if known[name][1] and units else name for name in wanted]
            lines.append(", ".join(titles))
        values = [" ".join(part for part in known[name] if part) if units else known[name][0] for name in wanted]
        lines.append(", ".join(values))
    return "\n".join(lines)


def table(nvml: Nvml, cards: list[int], count: int) -> str:
    """What is shown without arguments."""
    rule = "+-----------------------------------------+------------------------+----------------------+"
    driver = nvml.text("nvmlSystemGetDriverVersion")
    cuda = nvml.number("nvmlSystemGetCudaDriverVersion")
    version = f"{cuda // 1000}.{cuda % 1000 // 10}"
    title = f"NVIDIA-SMI {driver}   (emulated by Legroom)  Driver Version: {driver}   CUDA Version: {version}"
    lines = [
        datetime.now().strftime("%a %b %e %H:%M:%S %Y"),
        "+" + "-" * (len(rule) - 2) + "+",
        f"| {title:<{len(rule) - 4}} |",
        rule,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        rule.replace("-", "="),
    ]
    for index in cards:
        known = {name: value for name, (value, _) in properties(nvml, index, count).items()}
        power = f"{float(known['power.draw']):.0f}W / {float(known['power.limit']):4.0f}W"
        memory = f"{known['memory.used']}MiB / {known['memory.total']}MiB"
        lines += [
            f"| {index:3}  {known['name'][:24]:<24}     On  |   {known['pci.bus_id']} Off |                  N/A |",
            f"| N/A  {known['temperature.gpu']:>3}C    P0  {power:>22}  | {memory:>22} |      0%      Default |",
            rule,
        ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    nvml = Nvml()
    count = nvml.number("nvmlDeviceGetCount_v2")
    cards = list(range(count))
    wanted: list[str] = []
    layout: list[str] = []
    as_list = False
    rest = list(arguments)
    while rest:
        option, _, value = rest.pop(0).partition("=")
        if option in ("--query-gpu", "--format", "-i", "--id") and not value and rest:
            value = rest.pop(0)
        if option == "--query-gpu":
            wanted = [name.strip() for name in value.split(",")]
        elif option == "--format":
            layout = [name.strip() for name in value.split(",")]
        elif option in ("-i", "--id"):
            cards = [int(part) for part in value.split(",") if part.isdigit() and int(part) < count]
        elif option in ("-L", "--list-gpus"):
            as_list = True
        elif option.startswith("--query-"):  # of processes, say: there are none
            return 0
        else:
            print(f"Legroom's nvidia-smi does not know {option}.", file=sys.stderr)
            return 1
    if wanted:
        print(query(nvml, cards, count, wanted, layout))
    elif as_list:
        for index in cards:
            known = {name: value for name, (value, _) in properties(nvml, index, count).items()}
            print(f"GPU {index}: {known['name']} (UUID: {known['uuid']})")
    elif count == 0:
        print("No devices were found")
        return 6
    else:
        print(table(nvml, cards, count))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
