"""Examine this machine for the doctor: packages, GPUs, menus, memory and disks.

Imports the standard library alone at the top, because the doctor also runs where the other packages are missing. They
are tried in separate processes (`recipes/legroom/doctor/probe.py`).
"""

import os
import re
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from legroom.doctor import probe
from legroom.machine import host, nvml, requirements
from legroom.machine.nvml import Card, Driver
from legroom.paths import CHECKOUT, CONF, expanded
from legroom.units import GIB

LEAST_FREE_BYTES = GIB  # with less, saved models and compiled kernels soon fill the disk
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
        if self.name == "flash-attn":
            return "pip install flash-attn --no-build-isolation"
        if self.extra == "":
            return f"pip install {self.name}"
        project = requirements.NAME if CHECKOUT is None else "."
        if self.extra:
            project = f"'{project}[{self.extra}]'"
        return f"pip install {project}" if CHECKOUT is None else f"pip install -e {project}"


@dataclass(frozen=True)
class Host:
    """The machine around the GPUs."""

    memory_bytes: int | None
    cpu_bf16: bool | None  # the CPU has instructions for it
    headers: bool  # Python.h, which compiled code includes
    disks: dict[str, tuple[Path, int]]  # content -> folder, free bytes


@dataclass(frozen=True)
class Findings:
    """What the doctor found. `probes`: probe -> its facts, with 'error' where it failed."""

    python_bound: str
    packages: list[Package]
    driver: Driver
    cards: list[Card]
    jobs_gpus: tuple[nvml.Gpu, ...]  # those that a job sees, in CUDA's order
    jobs_error: str | None  # why the query for them, with which every job begins, fails
    probes: dict[str, dict]
    host: Host

    def version(self, name: str) -> str | None:
        """A package's version, or None."""
        for package in self.packages:
            if package.name == name:
                return package.version
        return None

    @property
    def torch_cuda(self) -> str | None:
        """The CUDA that torch is built for; None for a CPU build."""
        return self.probes.get("torch", {}).get("cuda")


def examine(began: Callable[[str], None] = lambda name: None) -> Findings:
    """Examine everything; takes as long as importing the libraries.

    began: called with the name of each that is tried.
    """
    queries = nvml.Nvml()
    cards = queries.cards()  # before the probes, which use memory themselves
    gpus, error = (), None
    try:
        gpus = host.gpus()
        if not gpus and cards and host.cuda_is_possible():
            gpus = nvml.visible_gpus()  # a job ignores a GPU that NVML does not describe; this raises NVML's error
    except Exception as failure:  # pynvml's own errors: a lost GPU, one without memory of its own
        error = f"{type(failure).__name__}: {failure}"
    python_bound, wanted = packages()
    probes = _probes(wanted, began)
    examined = []
    for package in wanted:
        if package.version is not None:
            package = replace(package, error=probes.get(package.name, {}).get("error"))
        examined.append(package)
    return Findings(python_bound, examined, queries.driver, cards, gpus, error, probes, examine_host())


def _probes(wanted: list[Package], began: Callable[[str], None]) -> dict[str, dict]:
    """Try the devices and import the installed packages. Returns probe -> its facts.

    One process does both, since most of the time goes into what nearly all packages import. Where it dies, another one
    tries the packages that are left.
    """
    installed = [package.name for package in wanted if package.version]
    left = [name for name in installed if name not in ("torch", "bitsandbytes")]
    call = f"probe.devices(bitsandbytes={'bitsandbytes' in installed}); probe.imports({left})"
    probes = probe.run(f"from legroom.doctor import probe; {call}", began=began)
    while True:
        left = [name for name in left if name not in probes]
        if not left:
            return probes
        more = probe.run(f"from legroom.doctor import probe; probe.imports({left})", began=began)
        probes |= more
        if not set(more) & set(left):  # no process starts
            return probes


def packages(pyproject: Path | None = requirements.PYPROJECT) -> tuple[str, list[Package]]:
    """The lowest Python, and each package that the project needs or can use. pyproject: as for `listed`."""
    lowest_python, needed = requirements.listed(pyproject)
    by_name: dict[str, Package] = {}
    for extra, name, bound, _ in needed:
        by_name.setdefault(name, Package(name, host.version(name), bound, extra))
    for name in ALSO:
        by_name.setdefault(name, Package(name, host.version(name), None, ""))
    return lowest_python, list(by_name.values())


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
    for content, folder in folders.items():
        existing = folder
        while not existing.exists():
            existing = existing.parent
        disks[content] = (folder, shutil.disk_usage(existing).free)
    headers = Path(sysconfig.get_paths()["include"], "Python.h").is_file()
    return Host(host.memory_bytes(), cpu_bf16, headers, disks)


def menus(probes: dict[str, dict]) -> dict[str, dict[str, list[str]]]:
    """Menu -> option -> why this machine cannot run it (empty: it can), from the menu's facts and hooks."""
    from legroom import levers
    from legroom.options import menus

    levers.load_rules()
    problems: dict[str, dict[str, list[str]]] = {
        "recipe": {name: [] for name in menus.options("recipe", [CONF])},
        "precision": {},
        "optim": {},
    }
    for group in ("precision", "optim"):
        for name in menus.options(group, [CONF]):
            values = menus.option_values(group, name, [CONF])
            problems[group][name] = _problems(group, values)
            needs_bitsandbytes = (values.get("facts") or {}).get("package") == "bitsandbytes"
            if needs_bitsandbytes and not problems[group][name] and probe.failures(probes, "bitsandbytes"):
                problems[group][name] = ["bitsandbytes fails here, see below."]
    problems["compile"] = {"true": _problems("compile", True)}
    return problems


def _problems(section: str, value: Any) -> list[str]:
    """Why this machine cannot run a configuration with this value of a section."""
    from legroom.options import validate

    return validate.section_problems(host.configuration({"device": "auto", section: value}), section)
