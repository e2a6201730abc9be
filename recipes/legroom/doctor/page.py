"""The doctor's page from its findings, and the command that prints it."""

import json
import platform
import sys
from pathlib import Path

from legroom.doctor import checks, faults, probe
from legroom.doctor.checks import Findings, Package
from legroom.doctor.gpu_page import card_section, links_section
from legroom.doctor.lines import NOT_AVAILABLE, Page, cell
from legroom.machine import host, requirements
from legroom.units import GIB

VERSION_COLUMN = 14
TRYING = "Trying the libraries"
# Of packages that are not required. The doctor also runs where PyYAML is missing, so this is no YAML file.
PURPOSES: dict[str, str] = json.loads(Path(__file__).with_name("purposes.json").read_text())


def page(found: Findings) -> Page:
    """All sections, and at the end what is broken."""
    out = Page()
    out.head("Legroom on this machine")
    versions(out, found)
    for card in found.cards:
        card_section(out, found, card)
    for name in (name for name, facts in found.probes.items() if probe.is_out_of_memory(facts)):
        out.row("not tried", f"{name}: other programs hold its memory", "yellow")
    if not found.cards:
        out.head("GPU")
        out.row("none", f"{found.driver.error or 'the driver shows no NVIDIA GPU'}; everything runs on the CPU")
    elif len(found.cards) > 1:
        links_section(out, found)
    host_section(out, found)
    works(out, found)
    wanted = installs(found)
    if wanted:
        out.head("What you could install")
        for command, why in wanted:
            out.lines += [(f"  for {why}", ""), (f"    {command}", "bold")]
    broken = faults.broken(found)
    out.lines.append(("", ""))
    for line in broken:
        out.wrapped("broken: ", line, "red", " " * 8)
    if broken:
        out.lines.append((f"{len(broken)} thing{'s are' if len(broken) > 1 else ' is'} broken.", "bold"))
    else:
        out.lines.append(("Nothing is broken.", "green"))
    return out


def versions(out: Page, found: Findings) -> None:
    """Packages against pyproject.toml's lower bounds, and the driver."""
    out.head("Versions")
    out.row("python", f"{cell(platform.python_version(), VERSION_COLUMN)}{found.python_bound} or newer")
    for package in found.packages:
        out.row(package.name, *version_row(found, package))
    driver = found.driver
    known = f"{cell(driver.version or '?', VERSION_COLUMN)}CUDA up to {driver.cuda or '?'}"
    out.row("NVIDIA driver", driver.error or known, "red" if driver.broken else "")


def version_row(found: Findings, package: Package) -> tuple[str, str]:
    """A package's version, its lower bound and what is known of it; and a style."""
    if package.version is None:
        if package.extra is None:
            return "not installed; needed", "red"
        return f"not installed; for {PURPOSES.get(package.name, 'some use')}", ""
    notes = [f"{package.bound} or newer"] if package.bound else []
    broken = bool(requirements.is_below(package.version, package.bound) or package.error)
    if package.name == "torch":
        if "error" not in found.probes.get("torch", {"error": ""}):
            notes.append(f"built for CUDA {found.torch_cuda}" if found.torch_cuda else "CPU build")
        broken |= bool(faults.torch_broken(found))
    if package.name == "bitsandbytes":
        start = "bitsandbytes on "
        works = [name for name, facts in found.probes.items() if name.startswith(start) and "error" not in facts]
        notes += [f"8-bit AdamW works on {', '.join(name.removeprefix(start) for name in works)}"] if works else []
        broken |= bool(probe.failures(found.probes, start))
    notes += ["BROKEN, see below"] * broken
    return f"{cell(package.version, VERSION_COLUMN)}{'; '.join(notes)}", "red" if broken else ""


def host_section(out: Page, found: Findings) -> None:
    """Processor, memory, compiler, disks."""
    out.head("Machine")
    out.row("processor", f"{host.cpu_name()}, {host.usable_cores()} cores for us")
    out.row("memory", f"{found.host.memory_bytes / GIB:.1f} GiB" if found.host.memory_bytes else NOT_AVAILABLE)
    lacking = "" if found.host.headers else "; Python.h is missing, which compiled code includes"
    out.row("C++ compiler", f"{host.compiler() or 'none'}{lacking}")
    for name, link in found.host.fabric.items():
        out.row("network", f"{name}: {link}; gpu.machine_link_gb_per_second is in GB/s, of all ports together")
    for what, (folder, free) in found.host.disks.items():
        out.row(what, f"{free / GIB:.1f} GiB free at {folder}", "red" if free < checks.LEAST_FREE_BYTES else "")


def works(out: Page, found: Findings) -> None:
    """The options that run on this machine, and why the others do not."""
    if found.jobs_error or any(p.extra is None and (p.version is None or p.error) for p in found.packages):
        return  # nothing runs before that is repaired, and the menus' modules may not import
    out.head("What works here")
    for group, options in checks.menus(found.probes).items():
        out.row(group, ", ".join(name for name, problems in options.items() if not problems) or "not here")
        if group == "precision" and not found.jobs_gpus and found.host.cpu_bf16 is not None:
            lacking = "no instructions for it, so it saves memory, not time."
            has = "instructions for it." if found.host.cpu_bf16 else lacking
            out.row("", f"- bf16: this processor has {has}")
        for problem in dict.fromkeys(problem for problems in options.values() for problem in problems):
            out.row("", f"- {problem}")


def installs(found: Findings) -> list[tuple[str, str]]:
    """(command, purpose) for each package that is missing and would be useful on this machine."""
    modern = any(card.capability and card.capability >= (8, 0) for card in found.cards)
    wanted = []
    if found.cards and "cuda" in found.probes.get("torch", {}) and not found.torch_cuda:
        wanted.append(("pip install --force-reinstall torch", "the GPU (on Windows take the line from pytorch.org)"))
    wanted += [
        (p.install, PURPOSES.get(p.name, p.name))
        for p in found.packages
        if p.version is None and p.extra is not None and (p.name != "flash-attn" or modern)
    ]
    if not host.compiler() or not found.host.headers:
        wanted.append(("sudo apt install g++ python3-dev", "compile=true"))
    return list(dict.fromkeys(wanted))  # two packages of one extra may be for the same thing


def main() -> int:
    """Examine the machine and print the page. Returns the exit code: 1 when something is broken."""
    try:
        from rich.console import Console
    except ImportError:  # the doctor also runs where nothing is installed yet
        found = checks.examine()
        print("\n".join(text for text, _ in page(found).lines))
    else:
        console = Console(highlight=False, soft_wrap=True)
        spinner = "dots" if console.encoding.startswith("utf") else "line"
        if not console.is_terminal:
            print("Trying the libraries, which takes some seconds.", file=sys.stderr, flush=True)
        with console.status(TRYING, spinner=spinner) as status:
            found = checks.examine(lambda name: status.update(f"{TRYING}: {name}"))
        for text, style in page(found).lines:
            console.print(text, style=style or None, markup=False)
    return 1 if faults.broken(found) else 0
