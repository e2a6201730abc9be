"""The doctor's page from its findings, and the command that prints it."""

import platform
import sys
import textwrap

from legroom.doctor import checks, faults, probe
from legroom.doctor.checks import Findings, Package
from legroom.machine import host, requirements
from legroom.machine.nvml import IDLE_GPU_BYTES, Card
from legroom.units import GIB

WIDTH, NAME_COLUMN = 80, 27  # a row: two spaces, the name up to NAME_COLUMN, the text wrapped behind it
VERSION_COLUMN = 14
NOT_AVAILABLE = "not available"
TRYING = "Trying the libraries"
# Lowest compute capability: NVIDIA's CUDA programming guide, and flash-attn's own README for the last
SUPPORT = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "flash attention 2": (8, 0)}
HOT_CELSIUS = 80  # the guide's 'Custom hardware for training': below it is good, throttling from 84 to 90
# What the packages that are not required are for.
PURPOSES = {
    "bitsandbytes": "optim=adam8bit and the other 8-bit ones",
    "peft": "adapter=lora and qlora",
    "liger-kernel": "kernels=liger",
    "torchao": "precision=fp8, optim=adamw4bit, adamw8bit_ao and adamw_fp8",
    "schedulefree": "optim=schedule_free",
    "torch-optimi": "optim=stable_adamw",
    "wandb": "tracker=wandb",
    "tensorboard": "tracker=tensorboard",
    "mlflow": "tracker=mlflow",
    "zstandard": "files that end in .zst",
    "playwright": "make test-browser",
    "mkdocs-material": "make docs",
    "flash-attn": "model.attention=flash_attention_2",
    "deepspeed": "parallelism=zero on several GPUs",
    "hydra-joblib-launcher": "hydra/launcher=joblib, sweeps whose jobs run side by side",
    "hydra-submitit-launcher": "hydra/launcher=submitit_slurm, sweeps on a cluster",
    "submitit": "hydra/launcher=submitit_slurm, sweeps on a cluster",
}


class Page:
    """Lines of at most 80 columns with a style each; `rich` colours them on a terminal."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def head(self, text: str) -> None:
        """A section's title, or the page's."""
        if self.lines:
            self.lines.append(("", ""))
        self.lines.append((text, "bold"))

    def row(self, name: str, text: str, style: str = "") -> None:
        """A name and a text behind it."""
        self.wrapped("  " + cell(name, NAME_COLUMN - 2), text, style, " " * NAME_COLUMN)

    def wrapped(self, start: str, text: str, style: str = "", indent: str = "    ") -> None:
        """A first part and a text behind it; further lines are indented."""
        lines = textwrap.wrap(
            text, WIDTH, initial_indent=start, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        self.lines += [(line, style) for line in lines]


def cell(text: str, width: int) -> str:
    """A text in a column of so many characters. A longer one moves the rest to the right; two spaces follow anyway."""
    return f"{text:<{width - 2}}  "


def main() -> int:
    """Examine the machine and print the page. Returns the exit code: 1 when something is broken."""
    try:
        from rich.console import Console
    except ImportError:  # the doctor also runs where nothing is installed yet
        findings = checks.examine()
        print("\n".join(text for text, _ in page(findings).lines))
    else:
        # Without force_terminal rich draws into a pipe where FORCE_COLOR is set, as Jupyter sets it.
        force_terminal = None if sys.stdout.isatty() else False
        console = Console(highlight=False, soft_wrap=True, force_terminal=force_terminal)
        spinner = "dots" if console.encoding.startswith("utf") else "line"
        if not console.is_terminal:
            print("Trying the libraries, which takes some seconds.", file=sys.stderr, flush=True)
        with console.status(TRYING, spinner=spinner) as status:
            findings = checks.examine(lambda name: status.update(f"{TRYING}: {name}"))
        for text, style in page(findings).lines:
            console.print(text, style=style or None, markup=False)
    return 1 if faults.broken(findings) else 0


def page(findings: Findings) -> Page:
    """All sections, and at the end what is broken."""
    out = Page()
    out.head("Legroom on this machine")
    versions(out, findings)
    for card in findings.cards:
        card_section(out, findings, card)
    for name, facts in findings.probes.items():
        if probe.is_out_of_memory(facts):
            out.row("not tried", f"{name}: other programs hold its memory", "yellow")
    if not findings.cards:
        out.head("GPU")
        out.row("none", f"{findings.driver.error or 'the driver shows no NVIDIA GPU'}; everything runs on the CPU")
    host_section(out, findings)
    works(out, findings)
    wanted = installs(findings)
    if wanted:
        out.head("What you could install")
        for command, purpose in wanted:
            out.lines += [(f"  for {purpose}", ""), (f"    {command}", "bold")]
    broken = faults.broken(findings)
    out.lines.append(("", ""))
    for line in broken:
        out.wrapped("broken: ", line, "red", " " * 8)
    if not broken:
        out.lines.append(("Nothing is broken.", "green"))
    elif len(broken) == 1:
        out.lines.append(("1 thing is broken.", "bold"))
    else:
        out.lines.append((f"{len(broken)} things are broken.", "bold"))
    return out


# --- packages ------------------------------------------------------------------------------------------


def versions(out: Page, findings: Findings) -> None:
    """Packages against pyproject.toml's lower bounds, and the driver."""
    out.head("Versions")
    out.row("python", f"{cell(platform.python_version(), VERSION_COLUMN)}{findings.python_bound} or newer")
    for package in findings.packages:
        out.row(package.name, *version_row(findings, package))
    driver = findings.driver
    known = f"{cell(driver.version or '?', VERSION_COLUMN)}CUDA up to {driver.cuda or '?'}"
    out.row("NVIDIA driver", driver.error or known, "red" if driver.broken else "")


def version_row(findings: Findings, package: Package) -> tuple[str, str]:
    """A package's version, its lower bound and what is known of it; and a style."""
    if package.version is None:
        if package.extra is None:
            return "not installed; needed", "red"
        return f"not installed; for {PURPOSES.get(package.name, 'some use')}", ""
    notes = []
    if package.bound:
        notes.append(f"{package.bound} or newer")
    broken = bool(requirements.is_below(package.version, package.bound) or package.error)
    if package.name == "torch":
        if "torch" in findings.probes and "error" not in findings.probes["torch"]:
            notes.append(f"built for CUDA {findings.torch_cuda}" if findings.torch_cuda else "CPU build")
        if faults.torch_broken(findings):
            broken = True
    if package.name == "bitsandbytes":
        start = "bitsandbytes on "
        devices = []
        for name, facts in findings.probes.items():
            if name.startswith(start) and "error" not in facts:
                devices.append(name.removeprefix(start))
        if devices:
            notes.append(f"8-bit AdamW works on {', '.join(devices)}")
        if probe.failures(findings.probes, start):
            broken = True
    if broken:
        notes.append("BROKEN, see below")
    return f"{cell(package.version, VERSION_COLUMN)}{'; '.join(notes)}", "red" if broken else ""


def installs(findings: Findings) -> list[tuple[str, str]]:
    """(command, purpose) for each package that is missing and would be useful on this machine."""
    has_modern_gpu = any(card.capability and card.capability >= (8, 0) for card in findings.cards)
    wanted = []
    if findings.cards and "cuda" in findings.probes.get("torch", {}) and not findings.torch_cuda:
        wanted.append(("pip install --force-reinstall torch", "the GPU (on Windows take the line from pytorch.org)"))
    for package in findings.packages:
        if package.version is not None or package.extra is None:
            continue
        if package.name != "flash-attn" or has_modern_gpu:
            wanted.append((package.install, PURPOSES.get(package.name, package.name)))
    if not host.compiler() or not findings.host.headers:
        wanted.append(("sudo apt install g++ python3-dev", "compile=true"))
    return list(dict.fromkeys(wanted))  # two packages of one extra may be for the same thing


# --- GPUs ----------------------------------------------------------------------------------------------


def card_section(out: Page, findings: Findings, card: Card) -> None:
    """A card: its memory, what it supports, and what slows it down."""
    out.head(f"GPU {card.index}: {card.name or 'name ' + NOT_AVAILABLE}")
    if card.memory_bytes is None or card.used_bytes is None:
        out.row("memory", NOT_AVAILABLE)
    else:
        used = f"{card.used_bytes / GIB:.1f} GiB of it in use before this check"
        out.row("memory", f"{card.memory_bytes / GIB:.1f} GiB, {used}")
    if card.processes:
        holders = []
        for pid, name, size in card.processes:
            memory = f", {size / GIB:.1f} GiB" if size else ""
            holders.append(f"{name} (pid {pid}{memory})")
        out.row("in use by", f"{', '.join(holders)}: a run beside it gets less memory and time", "yellow")
    elif (card.used_bytes or 0) > IDLE_GPU_BYTES:
        out.row("in use by", "programs that NVML does not name, in another container perhaps", "yellow")
    out.row("supports", supports(findings, card))
    out.row("power and heat", *power_and_heat(card))
    out.row("torch", *torch_use(findings, card))


def torch_use(findings: Findings, card: Card) -> tuple[str, str]:
    """Whether torch uses a card, and as which device; and a style."""
    if "cuda" in findings.probes.get("torch", {}) and not findings.torch_cuda:
        return "cannot use it: this torch is a CPU build", "yellow"
    if findings.jobs_error or card.uuid is None:
        return NOT_AVAILABLE, ""
    if card.mig:
        return "gets one slice of it (MIG is on); the figures above are the whole GPU's", ""
    order = [gpu.uuid for gpu in findings.jobs_gpus]
    if card.uuid not in order:
        return "does not see it: CUDA_VISIBLE_DEVICES hides it", ""
    device = f"cuda:{order.index(card.uuid)}"
    name = findings.probes.get(f"torch on {device}", {}).get("name")
    if name is None:
        return "did not get to use it, see below", "red"
    if name != card.name:
        return f"uses it as {device}, and calls it {name}", ""
    return f"uses it as {device}", ""


def supports(findings: Findings, card: Card) -> str:
    """What a card's compute capability supports."""
    if card.capability is None:
        return NOT_AVAILABLE
    supported, lacking = [], []
    for name, lowest in SUPPORT.items():
        if card.capability < lowest:
            lacking.append(f"{name} (from {lowest[0]}.{lowest[1]})")
        elif name == "flash attention 2" and not findings.version("flash-attn"):
            supported.append(f"{name} (once flash-attn is installed)")
        else:
            supported.append(name)
    parts = []
    if supported:
        parts.append(", ".join(supported))
    if lacking:
        parts.append(f"not {', '.join(lacking)}")
    return f"compute capability {card.capability[0]}.{card.capability[1]}: {'; '.join(parts)}"


def power_and_heat(card: Card) -> tuple[str, str]:
    """The power limit beside the card's default, the temperature, and what slows the card down; and a style."""
    facts = []
    style = ""
    if card.limit_watts:
        facts.append(f"{card.limit_watts:.0f} W at most")
        if card.default_watts and card.limit_watts < card.default_watts - 0.5:
            facts.append(f"below its default of {card.default_watts:.0f} W")
            style = "yellow"
    if card.celsius is not None:
        if card.celsius >= HOT_CELSIUS:
            facts.append(f"{card.celsius} C (HOT)")
            style = "yellow"
        else:
            facts.append(f"{card.celsius} C")
    if card.throttled_by:
        facts.append(f"slowed down at this moment, by {' and '.join(card.throttled_by)}")
        style = "yellow"
    return ", ".join(facts) or NOT_AVAILABLE, style


# --- the machine ---------------------------------------------------------------------------------------


def host_section(out: Page, findings: Findings) -> None:
    """Processor, memory, compiler, disks."""
    out.head("Machine")
    out.row("processor", f"{host.cpu_name()}, {host.usable_cores()} cores for us")
    memory = NOT_AVAILABLE
    if findings.host.memory_bytes:
        memory = f"{findings.host.memory_bytes / GIB:.1f} GiB"
    out.row("memory", memory)
    compiler = host.compiler() or "none"
    if not findings.host.headers:
        compiler += "; Python.h is missing, which compiled code includes"
    out.row("C++ compiler", compiler)
    for content, (folder, free) in findings.host.disks.items():
        style = "red" if free < checks.LEAST_FREE_BYTES else ""
        out.row(content, f"{free / GIB:.1f} GiB free at {folder}", style)


def works(out: Page, findings: Findings) -> None:
    """The options that run on this machine, and why the others do not."""
    if findings.jobs_error:
        return  # nothing runs before that is repaired
    if any(package.extra is None and (package.version is None or package.error) for package in findings.packages):
        return  # and the menus' modules may not import
    out.head("What works here")
    for group, options in checks.menus(findings.probes).items():
        usable = [name for name, problems in options.items() if not problems]
        out.row(group, ", ".join(usable) or "not here")
        if group == "precision" and not findings.jobs_gpus:
            if findings.host.cpu_bf16:
                out.row("", "- bf16: this processor has instructions for it.")
            elif findings.host.cpu_bf16 is not None:
                out.row("", "- bf16: this processor has no instructions for it, so it saves memory, not time.")
        all_problems: dict[str, None] = {}  # each once
        for problems in options.values():
            all_problems |= dict.fromkeys(problems)
        for problem in all_problems:
            out.row("", f"- {problem}")
