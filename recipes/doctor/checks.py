"""What the doctor finds on this machine, and which of it is broken; `scripts/doctor.py` prints it.

Imports the standard library alone: the doctor must speak where the other packages are missing. They are
tried in processes of their own (`recipes/doctor/probe.py`), side by side.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from recipes.doctor import probe
from recipes.machine import host
from recipes.machine.nvml import Card, Driver, Nvml
from recipes.paths import CONF, ROOT
from recipes.units import GIB

LEAST_FREE_BYTES = GIB  # below it, saved models and compiled kernels soon find a full disk
ALSO = ("wandb", "flash-attn")  # packages of some use that pyproject.toml need not name


@dataclass(frozen=True)
class Package:
    """A package that the project needs or can use. `extra`: None required, '' in no extra of the project."""

    name: str
    version: str | None
    bound: str | None  # the lowest version that pyproject.toml takes
    extra: str | None
    error: str | None = None  # why it cannot be imported

    @property
    def install(self) -> str:
        """The pip line that brings it."""
        if self.extra == "":
            return f"pip install {self.name}" + (" --no-build-isolation" if self.name == "flash-attn" else "")
        return f"pip install -e '.[{self.extra}]'" if self.extra else "pip install -e ."


@dataclass(frozen=True)
class Host:
    """The machine around the GPUs."""

    memory_bytes: int | None
    cpu_bf16: bool | None  # the CPU has instructions for it
    headers: bool  # Python.h, which compiled code includes
    disks: dict[str, tuple[Path, int]]  # what lies there -> folder, free bytes


@dataclass(frozen=True)
class Findings:
    """All that the doctor knows. `probes`: part -> what its process told; 'error' where it failed."""

    python_bound: str
    packages: list[Package]
    driver: Driver
    cards: list[Card]
    links: dict[tuple[int, int], str | None]
    jobs_gpus: tuple[host.Gpu, ...]  # those that a job sees, in CUDA's order
    jobs_error: str | None  # why asking for them, as every job does first, fails
    probes: dict[str, dict]
    host: Host

    def version(self, name: str) -> str | None:
        """A package's version, or None."""
        return next((p.version for p in self.packages if p.name == name), None)

    @property
    def torch_cuda(self) -> str | None:
        """The CUDA that torch is built for; None for a CPU build."""
        return self.probes.get("torch", {}).get("cuda")


def _asked() -> tuple[host.Gpu, ...]:
    """What NVML tells of the GPUs that a job may see. Raises its error where it does not tell."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return () if hidden or not host.torch_has_cuda() else host.query_nvml()


def examine() -> Findings:
    """Look at everything; takes as long as importing the libraries twice, side by side."""
    nvml = Nvml()
    cards = nvml.cards()  # before the probes, whose memory is then nobody else's
    try:
        # Jobs take a GPU that NVML does not describe for none at all; here the reason is wanted.
        gpus, error = host.gpus() or (_asked() if cards else ()), None
    except Exception as failure:  # NVML's own errors: a lost GPU, one without memory of its own
        gpus, error = (), f"{type(failure).__name__}: {failure}"
    bound, wanted = packages()
    rest = [p.name for p in wanted if p.version and p.name not in ("torch", "bitsandbytes")]
    bitsandbytes = any(p.name == "bitsandbytes" and p.version for p in wanted)
    calls = [f"devices(bitsandbytes={bitsandbytes})", f"imports({rest})"]
    with ThreadPoolExecutor() as pool:
        answers = pool.map(probe.ask, [f"from recipes.doctor import probe; probe.{call}" for call in calls])
        probes = {part: told for answer in answers for part, told in answer.items()}
    wanted = [replace(p, error=probes.get(p.name, {}).get("error") if p.version else None) for p in wanted]
    return Findings(bound, wanted, nvml.driver, cards, nvml.links(len(cards)), gpus, error, probes, examine_host())


def packages(pyproject: Path = ROOT / "pyproject.toml") -> tuple[str, list[Package]]:
    """The lowest Python, and each package that the project needs or can use."""
    project = tomllib.loads(pyproject.read_text())["project"]
    lines = [(None, line) for line in project["dependencies"]]
    lines += [
        (extra, line)
        for extra, group in project.get("optional-dependencies", {}).items()
        if extra != "dev"
        for line in group
    ]
    found = {}
    for extra, line in lines:
        name, bound = re.match(r"([\w.-]+)[^>;]*(?:>=\s*([\w.]+))?", line).groups()
        if name != project.get("name"):  # an extra that is made of others
            found.setdefault(name, Package(name, host.version(name), bound, extra))
    for name in ALSO:
        found.setdefault(name, Package(name, host.version(name), None, ""))
    return project["requires-python"].removeprefix(">="), list(found.values())


def is_below(version: str, bound: str | None) -> bool:
    """Whether a release is older than a bound. 2.11 is no older than 2.11.0; what follows it (rc1, +cpu) is ignored."""

    def release(text):
        return [int(n) for n in re.sub(r"(\.0+)+$", "", re.match(r"[\d.]*\d", text).group()).split(".")]

    return bound is not None and release(version) < release(bound)


def examine_host() -> Host:
    """Memory, instructions, headers and disks."""
    memory = None
    try:
        import psutil

        memory = psutil.virtual_memory().total
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))  # a container's own limit
    except (ImportError, OSError, ValueError):  # no psutil, no such limit, or 'max'
        pass
    try:
        cpu_bf16 = bool(re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", Path("/proc/cpuinfo").read_text()))
    except OSError:
        cpu_bf16 = None
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
    places = {
        "outputs/": Path("outputs").absolute(),
        "Hugging Face cache": Path(os.environ.get("HF_HUB_CACHE") or home).expanduser().absolute(),
    }
    disks = {}
    for what, folder in places.items():
        there = next(path for path in (folder, *folder.parents) if path.exists())
        disks[what] = (folder, shutil.disk_usage(there).free)
    return Host(memory, cpu_bf16, Path(sysconfig.get_paths()["include"], "Python.h").is_file(), disks)


def menus(probes: dict[str, dict]) -> dict[str, dict[str, list[str]]]:
    """Menu -> option -> why this machine cannot run it (nothing: it can), asked of the menu's own module."""
    import yaml

    from recipes import config
    from recipes.options import compile, menus, optim, precision

    def cfg(**values):
        return config.from_dict({"device": "auto", **values})

    found = {"recipe": {name: [] for name in menus.options("recipe", [CONF])}}
    for group, module in (("precision", precision), ("optim", optim)):
        found[group] = {
            name: module.problems(cfg(**{group: yaml.safe_load(path.read_text())}))
            for name, path in menus.options(group, [CONF]).items()
        }
    if failed(probes, "bitsandbytes"):
        for name, problems in found["optim"].items():
            problems += ["bitsandbytes fails here, see below."] if "8bit" in name and not problems else []
    return found | {"compile": {"true": compile.problems(cfg(compile=True))}}


# --- what is broken -----------------------------------------------------------------------------------


def broken(found: Findings) -> list[str]:
    """What keeps the project from running as it should, a sentence each with what to do."""
    lines = []
    if is_below(platform.python_version(), found.python_bound):
        lines.append(f"Python {platform.python_version()} is below {found.python_bound}: make a new environment.")
    missing = [p for p in found.packages if p.version is None and p.extra is None]
    if missing:
        lines.append(f"{', '.join(p.name for p in missing)} not installed: {missing[0].install}")
    for p in (p for p in found.packages if p.version is not None):
        if is_below(p.version, p.bound):
            lines.append(f"{p.name} {p.version} is below {p.bound}: pip install --upgrade '{p.name}>={p.bound}'")
        elif p.error:
            lines.append(f"{p.name} {p.version} cannot be imported ({p.error}): pip install --force-reinstall {p.name}")
    if found.driver.stuck:
        lines.append(
            f"the NVIDIA driver does not work ({found.driver.error}): restart the machine; if that does not "
            "help, install the driver again."
        )
    if found.jobs_error:
        lines.append(
            f"no job can start: NVML does not tell what a job asks of the GPUs ({found.jobs_error}). "
            "CUDA_VISIBLE_DEVICES= python train.py ... runs on the CPU."
        )
    lines += torch_broken(found)
    for part, error in failed(found.probes, "bitsandbytes on").items():
        lines.append(
            f"8-bit AdamW fails, {part} ({error}): pip install --upgrade bitsandbytes, or choose "
            "optim=adafactor. python -m bitsandbytes says more."
        )
    if "error" in found.probes.get("python", {}):
        lines.append(f"a new Python process fails here ({found.probes['python']['error']}).")
    for what, (folder, free) in found.host.disks.items():
        if free < LEAST_FREE_BYTES:
            lines.append(f"{free / GIB:.2f} GiB free where {what} lies ({folder}): make room, at least 1 GiB.")
    return lines


def torch_broken(found: Findings) -> list[str]:
    """Where torch, built for CUDA, cannot use the GPUs that NVML shows to a job."""
    if not found.torch_cuda or not found.jobs_gpus:
        return []
    errors = [f"{part}: {error}" for part, error in failed(found.probes, "torch on").items()]
    count = found.probes.get("torch on CUDA", {}).get("count")
    if not errors and count is not None and count < len(found.jobs_gpus) and not any(c.mig for c in found.cards):
        errors = [f"NVML shows {len(found.jobs_gpus)} GPUs, torch {count}"]
    return [
        f"torch {found.version('torch')} cannot use the GPU ({error}). It is built for CUDA {found.torch_cuda}, "
        f"the driver knows CUDA up to {found.driver.cuda or '?'}: update the driver, or take the pip line "
        "for an older CUDA from pytorch.org/get-started."
        for error in errors
    ]


def failed(probes: dict[str, dict], start: str) -> dict[str, str]:
    """Part -> error, of the parts that begin so and failed for a reason of their own."""
    return {
        part: told["error"]
        for part, told in probes.items()
        if part.startswith(start) and "error" in told and not is_full(told)
    }


def is_full(told: dict) -> bool:
    """Whether a probe failed only because other programs hold the GPU's memory."""
    return "out of memory" in told.get("error", "").lower()
