#!/usr/bin/env python
"""What this machine can do for a training, what to install, and what is broken.

    python scripts/doctor.py

Exit code 1 when something is broken: a line `broken: ...` for each says what to do. Otherwise 0.
"""

from __future__ import annotations

import platform
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if sys.version_info < (3, 11):  # recipes.doctor reads pyproject.toml with a module that older ones lack
    print(f"broken: Python {platform.python_version()} is below 3.11: make an environment with a newer one.")
    sys.exit(1)

from recipes.doctor import checks
from recipes.doctor.checks import Findings
from recipes.machine import host
from recipes.machine.nvml import Card
from recipes.units import GIB, MIB

WIDTH, COLUMN = 80, 22  # a row: two spaces, the name up to COLUMN, the text wrapped behind it
NONE = "not available"
# Lowest compute capability: NVIDIA's CUDA programming guide, and flash-attn's own README for the last
SUPPORT = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "flash attention 2": (8, 0)}
HOT_CELSIUS = 80  # the guide's 'Custom hardware for training': below it is good, throttling from 84 to 90
DRIVER_KEEPS_BYTES = 600 * MIB  # an idle GPU shows up to about 500 MiB
# The guide's DDP of GPT-2 on 2 TITAN RTX, seconds for 200 steps
NVLINK_SECONDS, PCIE_SECONDS = 101.9, 131.4
LEGEND = {
    "NV": "that many NVLinks",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PSB": "a switch on one board",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between CPUs or NUMA nodes",
}
FOR = {
    "bitsandbytes": "optim=adam8bit and the other 8-bit ones",
    "wandb": "tracker=wandb",
    "flash-attn": "model.attention=flash_attention_2",
}


class Page:
    """Lines of at most 80 columns with a style each; `rich` colours them on a terminal."""

    def __init__(self):
        self.lines: list[tuple[str, str]] = []

    def head(self, text: str) -> None:
        """A section's title, or the page's."""
        self.lines += [("", ""), (text, "bold")] if self.lines else [(text, "bold")]

    def row(self, name: str, text: str, style: str = "") -> None:
        """A name and what there is to say of it."""
        self.wrapped(f"  {name:<{COLUMN - 2}}", text, style, " " * COLUMN)

    def wrapped(self, start: str, text: str, style: str = "", indent: str = "    ") -> None:
        """A start and a text behind it; further lines are indented."""
        lines = textwrap.wrap(
            text, WIDTH, initial_indent=start, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        self.lines += [(line, style) for line in lines]


def page(found: Findings) -> Page:
    """All sections, and the verdict."""
    out = Page()
    out.head("Headroom on this machine")
    versions(out, found)
    for card in found.cards:
        gpu(out, found, card)
    for part in (part for part, told in found.probes.items() if checks.is_full(told)):
        out.row("not tried", f"{part}: other programs hold its memory", "yellow")
    if not found.cards:
        out.head("GPU")
        out.row("none", f"{found.driver.error or 'the driver shows no NVIDIA GPU'}; everything runs on the CPU")
    elif len(found.cards) > 1:
        links(out, found)
    host_section(out, found)
    works(out, found)
    wanted = installs(found)
    if wanted:
        out.head("What you could install")
        for command, why in wanted:
            out.lines += [(f"  for {why}", ""), (f"    {command}", "bold")]
    broken = checks.broken(found)
    out.lines.append(("", ""))
    for line in broken:
        out.wrapped("broken: ", line, "red", " " * 8)
    out.lines.append(
        (
            f"{len(broken)} thing{'s are' if len(broken) > 1 else ' is'} broken." if broken else "Nothing is broken.",
            "bold" if broken else "green",
        )
    )
    return out


def versions(out: Page, found: Findings) -> None:
    """Packages against pyproject.toml's lower bounds, and the driver."""
    out.head("Versions")
    out.row("python", f"{platform.python_version():<14}{found.python_bound} or newer")
    for p in found.packages:
        if p.version is None:
            out.row(
                p.name,
                f"not installed; {'needed' if p.extra is None else 'for ' + FOR.get(p.name, 'some use')}",
                "red" if p.extra is None else "",
            )
            continue
        notes = [f"{p.bound} or newer"] if p.bound else []
        if p.name == "torch" and "error" not in found.probes.get("torch", {"error": ""}):
            notes.append(f"built for CUDA {found.torch_cuda}" if found.torch_cuda else "CPU build")
        if p.name == "bitsandbytes":
            where = [
                part.split()[-1]
                for part, told in found.probes.items()
                if part.startswith("bitsandbytes on") and "error" not in told
            ]
            notes += [f"8-bit AdamW works on {', '.join(where)}"] if where else []
        fails = {"torch": checks.torch_broken(found), "bitsandbytes": checks.failed(found.probes, "bitsandbytes on")}
        bad = checks.is_below(p.version, p.bound) or p.error or fails.get(p.name)
        out.row(p.name, f"{p.version:<14}{'; '.join(notes + ['BROKEN, see below'] * bool(bad))}", "red" if bad else "")
    out.row(
        "NVIDIA driver",
        found.driver.error or f"{found.driver.version or '?':<14}CUDA up to {found.driver.cuda or '?'}",
        "red" if found.driver.stuck else "",
    )


def gpu(out: Page, found: Findings, card: Card) -> None:
    """A card: what it has, what it supports, and what slows it down."""
    out.head(f"GPU {card.index}: {card.name or 'name ' + NONE}")
    if card.memory_bytes is None:
        out.row("memory", NONE)
    else:
        out.row(
            "memory",
            f"{card.memory_bytes / GIB:.1f} GiB, {card.used_bytes / GIB:.1f} GiB of it in use before this check",
        )
    if card.processes:
        holders = ", ".join(
            f"{name} (pid {pid}{f', {size / GIB:.1f} GiB' if size else ''})" for pid, name, size in card.processes
        )
        out.row("in use by", f"{holders}: a run beside it gets less memory and time", "yellow")
    elif (card.used_bytes or 0) > DRIVER_KEEPS_BYTES:
        out.row("in use by", "programs that NVML does not name, in another container perhaps", "yellow")
    out.row("supports", supports(found, card))
    out.row("power limit", *power(card))
    out.row("temperature", *temperature(card, advise=card is found.cards[0]))
    if card.throttled_by:
        out.row("slowed down", f"at this moment, by {' and '.join(card.throttled_by)}", "yellow")
    out.row("torch", *use(found, card))


def use(found: Findings, card: Card) -> tuple[str, str]:
    """What torch makes of a card, and a style."""
    if "cuda" in found.probes.get("torch", {}) and not found.torch_cuda:
        return "cannot use it: this torch is a CPU build", "yellow"
    if found.jobs_error or card.uuid is None:
        return NONE, ""
    if card.mig:
        return "gets one slice of it (MIG is on); the figures above are the whole GPU's", ""
    order = [g.uuid for g in found.jobs_gpus]
    if card.uuid not in order:
        return "does not see it: CUDA_VISIBLE_DEVICES hides it", ""
    device = f"cuda:{order.index(card.uuid)}"
    name = found.probes.get(f"torch on {device}", {}).get("name")
    if name is None:
        return "did not get to use it, see below", "red"
    return f"uses it as {device}" + (f", and calls it {name}" if name != card.name else ""), ""


def supports(found: Findings, card: Card) -> str:
    """What a compute capability brings."""
    if card.capability is None:
        return NONE
    have = [name for name, lowest in SUPPORT.items() if card.capability >= lowest]
    lack = [f"{name} (from {lowest[0]}.{lowest[1]})" for name, lowest in SUPPORT.items() if card.capability < lowest]
    if "flash attention 2" in have and not found.version("flash-attn"):
        have[-1] += " (once flash-attn is installed)"
    return f"compute capability {card.capability[0]}.{card.capability[1]}: " + "; ".join(
        filter(None, [", ".join(have), "not " + ", ".join(lack) if lack else ""])
    )


def power(card: Card) -> tuple[str, str]:
    """The power limit against the card's default, and a style."""
    if card.limit_watts is None:
        return NONE, ""
    most = f" (at most {card.most_watts:.0f} W)" if card.most_watts else ""
    if card.default_watts and card.limit_watts < card.default_watts - 0.5:
        return (
            f"{card.limit_watts:.0f} W, below its default of {card.default_watts:.0f} W{most}: slower than others "
            f"of its kind; sudo nvidia-smi -i {card.index} -pl {card.default_watts:.0f} lifts it"
        ), "yellow"
    return f"{card.limit_watts:.0f} W{', its default' if card.limit_watts == card.default_watts else ''}{most}", ""


def temperature(card: Card, advise: bool = False) -> tuple[str, str]:
    """Degrees now, the card's own thresholds, the guide's advice, and a style."""
    words = [NONE if card.celsius is None else f"{card.celsius} C"]
    words += [
        f"{word} at {value} C"
        for word, value in (("slows down", card.slowdown_celsius), ("shuts down", card.shutdown_celsius))
        if value
    ]
    if card.slowdown_celsius is None and card.margin_celsius is not None:
        words.append(f"slows down {card.margin_celsius} C above that")
    hot = card.celsius is not None and card.celsius >= HOT_CELSIUS
    if hot:
        words.append(
            "HOT: keep it below 80 C; GPUs throttle somewhere between 84 and 90 C, and a throttled one is slower"
        )
    elif advise:
        words.append("under load keep it below 80 C: GPUs throttle somewhere between 84 and 90 C")
    return "; ".join(words), "yellow" if hot else ""


def links(out: Page, found: Findings) -> None:
    """How the GPUs are linked, and what that means for the two ways to use several."""
    out.head("Links between GPUs, as `nvidia-smi topo -m` has them")
    words, count = {pair: word or NONE for pair, word in found.links.items()}, len(found.cards)
    if len(set(words.values())) == 1:
        out.row("every pair" if count > 2 else "0 and 1", words[0, 1])
    else:
        out.lines.append(("      " + "".join(f"{b:>5}" for b in range(count)), ""))
        for a in range(count):
            cells = [found.links[min(a, b), max(a, b)] or "?" if a != b else "x" for b in range(count)]
            out.lines.append((f"  {a:>4}" + "".join(f"{cell:>5}" for cell in cells), ""))
    kinds = [kind for kind in LEGEND if any(word.startswith(kind) for word in words.values())]
    if kinds:
        out.row("", "; ".join(f"{kind + '#' * (kind == 'NV')}: {LEGEND[kind]}" for kind in kinds))
    joined = [pair for pair, word in words.items() if word.startswith("NV")]
    measured = f"The guide measured {NVLINK_SECONDS} s with NVLink, {PCIE_SECONDS} s without (GPT-2 on 2 TITAN RTX)"
    if len(joined) == len(words):
        out.row(
            "DDP",
            f"sends gradients only, and NVLink carries them well. {measured}; NCCL_P2P_DISABLE=1 shows "
            "the difference here.",
        )
        out.row("FSDP", "sends parameters and gradients, and wants NVLink: here it is.")
        return
    out.row("DDP", f"sends gradients only: it works over PCIe, and is slower. {measured}.")
    out.row(
        "FSDP",
        "sends parameters too, and wants NVLink. Over PCIe take it for a model that does not fit "
        "otherwise, not for speed.",
    )
    if joined:
        out.row(
            "",
            f"NVLink joins {', '.join(f'{a} and {b}' for a, b in joined)}: a job of two does best on such "
            f"a pair, CUDA_VISIBLE_DEVICES={joined[0][0]},{joined[0][1]}.",
        )


def host_section(out: Page, found: Findings) -> None:
    """Processor, memory, compiler, disks."""
    out.head("Machine")
    out.row("processor", f"{host.cpu_name()}, {host.usable_cores()} cores for us")
    out.row("memory", f"{found.host.memory_bytes / GIB:.1f} GiB" if found.host.memory_bytes else NONE)
    out.row(
        "C++ compiler",
        (host.compiler() or "none")
        + ("" if found.host.headers else "; Python.h is missing, which compiled code includes"),
    )
    for what, (folder, free) in found.host.disks.items():
        out.row(what, f"{free / GIB:.1f} GiB free at {folder}", "red" if free < checks.LEAST_FREE_BYTES else "")


def works(out: Page, found: Findings) -> None:
    """The menus' options that run here, and why the others do not."""
    if found.jobs_error or any(p.extra is None and (p.version is None or p.error) for p in found.packages):
        return  # nothing runs before that is mended, and the menus' modules may not load
    out.head("What works here")
    for group, options in checks.menus(found.probes).items():
        out.row(group, ", ".join(name for name, problems in options.items() if not problems) or "not here")
        if group == "precision" and not found.jobs_gpus and found.host.cpu_bf16 is not None:
            out.row(
                "",
                "- bf16: this processor has instructions for it."
                if found.host.cpu_bf16
                else "- bf16: this processor has no instructions for it, so it saves memory, not time.",
            )
        for problem in dict.fromkeys(problem for problems in options.values() for problem in problems):
            out.row("", f"- {problem}")


def installs(found: Findings) -> list[tuple[str, str]]:
    """Command and reason for what is missing and would be of use here."""
    modern = any(card.capability and card.capability >= (8, 0) for card in found.cards)
    wanted = []
    if found.cards and "cuda" in found.probes.get("torch", {}) and not found.torch_cuda:
        wanted.append(("pip install --force-reinstall torch", "the GPU (on Windows take the line from pytorch.org)"))
    wanted += [
        (p.install, FOR.get(p.name, p.name))
        for p in found.packages
        if p.version is None and p.extra is not None and (p.name != "flash-attn" or modern)
    ]
    if not host.compiler() or not found.host.headers:
        wanted.append(("sudo apt install g++ python3-dev", "compile=true"))
    return wanted


def main() -> int:
    """The command. Returns its exit code."""
    try:
        from rich.console import Console
    except ImportError:  # the doctor speaks where nothing is installed yet
        found = checks.examine()
        print("\n".join(text for text, _ in page(found).lines))
    else:
        console = Console(highlight=False, soft_wrap=True)
        with console.status("Trying the libraries, which takes some seconds"):
            found = checks.examine()
        for text, style in page(found).lines:
            console.print(text, style=style or None, markup=False)
    return 1 if checks.broken(found) else 0


if __name__ == "__main__":
    sys.exit(main())
