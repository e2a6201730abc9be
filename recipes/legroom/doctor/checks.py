"""Examine this machine for the doctor: packages, GPUs, menus, memory and disks.

Imports the standard library alone at the top, because the doctor also runs where the other packages are missing. They
are tried in separate processes (`recipes/legroom/doctor/probe.py`).
"""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from legroom.doctor import probe
from legroom.machine import host, nvml, requirements
from legroom.machine.nvml import Card, Driver
from legroom.paths import CHECKOUT, CONF, expanded
from legroom.units import GIB

LEAST_FREE_BYTES = GIB  # with less, saved models and compiled kernels soon fill the disk
LINKS_SECONDS = 10
ALSO = ("wandb", "flash-attn")  # useful packages that pyproject.toml may not list


@dataclass(frozen=True)
class Package:
    """A package that the project needs or can use. `extra`: None if required, '' if in no extra of the project."""

    name: str
    version: str | None
    bound: str | None  # the lowest version that pyproject.toml accepts
    extra: str | None
    error: str | None = None  # why it cannot be imported

    @property
    def install(self) -> str:
        """The pip command that installs it."""
        if self.extra == "":
            return f"pip install {self.name}" + (" --no-build-isolation" if self.name == "flash-attn" else "")
        where, name = ("", requirements.NAME) if CHECKOUT is None else ("-e ", ".")
        return f"pip install {where}'{name}[{self.extra}]'" if self.extra else f"pip install {where}{name}"


@dataclass(frozen=True)
class Host:
    """The machine around the GPUs."""

    memory_bytes: int | None
    cpu_bf16: bool | None  # the CPU has instructions for it
    headers: bool  # Python.h, which compiled code includes
    disks: dict[str, tuple[Path, int]]  # content -> folder, free bytes
    fabric: dict[str, str]  # active port of an InfiniBand card -> link layer, rate


@dataclass(frozen=True)
class Findings:
    """What the doctor found. `probes`: probe -> its facts, with 'error' where it failed."""

    python_bound: str
    packages: list[Package]
    driver: Driver
    cards: list[Card]
    links: list[list[str]]  # a row and a column for each card: NV2, PIX, X ...
    jobs_gpus: tuple[nvml.Gpu, ...]  # those that a job sees, in CUDA's order
    jobs_error: str | None  # why the query for them, with which every job begins, fails
    probes: dict[str, dict]
    host: Host

    def version(self, name: str) -> str | None:
        """A package's version, or None."""
        return next((p.version for p in self.packages if p.name == name), None)

    @property
    def torch_cuda(self) -> str | None:
        """The CUDA that torch is built for; None for a CPU build."""
        return self.probes.get("torch", {}).get("cuda")


def examine(began: Callable[[str], None] = lambda name: None) -> Findings:
    """Examine everything; takes as long as importing the libraries. began: called with the name of each that is tried,
    from several threads."""
    queries = nvml.Nvml()
    cards = queries.cards()  # before the probes, which use memory themselves
    try:
        # A job ignores a GPU that NVML does not describe; the doctor reports NVML's error.
        gpus, error = host.gpus() or (nvml.visible_gpus() if cards and host.cuda_is_possible() else ()), None
    except Exception as failure:  # pynvml's own errors: a lost GPU, one without memory of its own
        gpus, error = (), f"{type(failure).__name__}: {failure}"
    bound, wanted = packages()
    others = [p.name for p in wanted if p.version and p.name not in ("torch", "bitsandbytes")]
    bitsandbytes = any(p.name == "bitsandbytes" and p.version for p in wanted)
    calls = [f"devices(bitsandbytes={bitsandbytes})", f"imports({others})"]
    with ThreadPoolExecutor() as pool:
        codes = [f"from legroom.doctor import probe; probe.{call}" for call in calls]
        results = pool.map(lambda code: probe.run(code, began=began), codes)
        probes = {name: facts for result in results for name, facts in result.items()}
    wanted = [replace(p, error=probes.get(p.name, {}).get("error") if p.version else None) for p in wanted]
    return Findings(
        bound,
        wanted,
        queries.driver,
        cards,
        links(len(cards)),
        gpus,
        error,
        probes,
        examine_host(),
    )


def packages(pyproject: Path | None = requirements.PYPROJECT) -> tuple[str, list[Package]]:
    """The lowest Python, and each package that the project needs or can use. pyproject: as for `listed`."""
    lowest_python, needed = requirements.listed(pyproject)
    found: dict[str, Package] = {}
    for extra, name, bound, _ in needed:
        found.setdefault(name, Package(name, host.version(name), bound, extra))
    for name in ALSO:
        found.setdefault(name, Package(name, host.version(name), None, ""))
    return lowest_python, list(found.values())


def examine_host() -> Host:
    """Memory, instructions, headers and disks."""
    try:
        cpu_bf16 = bool(re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", Path("/proc/cpuinfo").read_text()))
    except OSError:
        cpu_bf16 = None
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
    folders = {
        "outputs/": Path("outputs").absolute(),
        "Hugging Face cache": expanded(os.environ.get("HF_HUB_CACHE") or home).absolute(),
    }
    disks = {}
    for what, folder in folders.items():
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        disks[what] = (folder, shutil.disk_usage(existing).free)
    headers = Path(sysconfig.get_paths()["include"], "Python.h").is_file()
    return Host(host.memory_bytes(), cpu_bf16, headers, disks, fabric_ports())


def fabric_ports(folder: Path = Path("/sys/class/infiniband")) -> dict[str, str]:
    """Active port of a card that speaks InfiniBand or RoCE -> its link layer and its rate, as Linux lists them.

    RoCE, the same protocol over Ethernet, has the link layer 'Ethernet'.
    """
    ports = [file.parent for file in sorted(folder.glob("*/ports/*/rate"))]
    active = [port for port in ports if "ACTIVE" in (port / "state").read_text()]
    files = {f"{port.parent.parent.name} port {port.name}": (port / "link_layer", port / "rate") for port in active}
    return {name: ", ".join(file.read_text().strip() for file in of) for name, of in files.items()}


def links(count: int) -> list[list[str]]:
    """The links between the GPUs of this machine as `nvidia-smi topo -m` names them; empty where it does not."""
    try:
        command = ["nvidia-smi", "topo", "-m"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=LINKS_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    table = [re.sub("\x1b\\[\\d*m", "", line).split()[: count + 1] for line in found.splitlines()]
    return [row[1:] for row in table if re.fullmatch(r"GPU\d+", "".join(row[:1])) and "X" in row]


def menus(probes: dict[str, dict]) -> dict[str, dict[str, list[str]]]:
    """Menu -> option -> why this machine cannot run it (empty: it can), from the menu's facts and hooks."""
    from legroom import levers
    from legroom.options import menus, validate

    levers.load_rules()

    def cfg(**values):
        return host.configuration({"device": "auto", **values})

    found = {"recipe": {name: [] for name in menus.options("recipe", [CONF])}}
    for group in ("precision", "optim"):
        values = {name: menus.option_values(group, name, [CONF]) for name in menus.options(group, [CONF])}
        found[group] = {name: validate.section_problems(cfg(**{group: own}), group) for name, own in values.items()}
        for name, own in values.items():
            needs_it = (own.get("facts") or {}).get("package") == "bitsandbytes"
            if needs_it and not found[group][name] and probe.failures(probes, "bitsandbytes"):
                found[group][name] = ["bitsandbytes fails here, see below."]
    return found | {"compile": {"true": validate.section_problems(cfg(compile=True), "compile")}}
