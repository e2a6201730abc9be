"""The doctor's sections on GPUs: each card, and the links between them."""

from __future__ import annotations

from legroom.doctor.checks import Findings
from legroom.doctor.lines import NOT_AVAILABLE, Page
from legroom.machine.nvml import IDLE_GPU_BYTES, Card
from legroom.units import GIB

# Lowest compute capability: NVIDIA's CUDA programming guide, and flash-attn's own README for the last
SUPPORT = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "flash attention 2": (8, 0)}
HOT_CELSIUS = 80  # the guide's 'Custom hardware for training': below it is good, throttling from 84 to 90
# The guide's DDP of GPT-2 on 2 TITAN RTX, seconds for 200 steps
NVLINK_SECONDS, PCIE_SECONDS = 101.9, 131.4


def card_section(out: Page, found: Findings, card: Card) -> None:
    """A card: its memory, what it supports, and what slows it down."""
    out.head(f"GPU {card.index}: {card.name or 'name ' + NOT_AVAILABLE}")
    if card.memory_bytes is None or card.used_bytes is None:
        out.row("memory", NOT_AVAILABLE)
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
    elif (card.used_bytes or 0) > IDLE_GPU_BYTES:
        out.row("in use by", "programs that NVML does not name, in another container perhaps", "yellow")
    out.row("supports", supports(found, card))
    out.row("power limit", *power(card))
    out.row("temperature", *temperature(card, advise=card is found.cards[0]))
    if card.throttled_by:
        out.row("slowed down", f"at this moment, by {' and '.join(card.throttled_by)}", "yellow")
    out.row("torch", *torch_use(found, card))


def torch_use(found: Findings, card: Card) -> tuple[str, str]:
    """Whether torch uses a card, and as which device; and a style."""
    if "cuda" in found.probes.get("torch", {}) and not found.torch_cuda:
        return "cannot use it: this torch is a CPU build", "yellow"
    if found.jobs_error or card.uuid is None:
        return NOT_AVAILABLE, ""
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
    """What a card's compute capability supports."""
    if card.capability is None:
        return NOT_AVAILABLE
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
        return NOT_AVAILABLE, ""
    if card.default_watts and card.limit_watts < card.default_watts - 0.5:
        return (
            f"{card.limit_watts:.0f} W, below its default of {card.default_watts:.0f} W: slower than others "
            f"of its kind; sudo nvidia-smi -i {card.index} -pl {card.default_watts:.0f} lifts it"
        ), "yellow"
    return f"{card.limit_watts:.0f} W{', its default' if card.limit_watts == card.default_watts else ''}", ""


def temperature(card: Card, advise: bool = False) -> tuple[str, str]:
    """Degrees now, the guide's advice, and a style."""
    now = NOT_AVAILABLE if card.celsius is None else f"{card.celsius} C"
    if card.celsius is not None and card.celsius >= HOT_CELSIUS:
        return f"{now}; HOT: keep it below 80 C; GPUs throttle somewhere between 84 and 90 C, and are slower", "yellow"
    return now + "; under load keep it below 80 C: GPUs throttle somewhere between 84 and 90 C" * advise, ""


def links_section(out: Page, found: Findings) -> None:
    """How the GPUs are linked, and what that means for the two ways to use several."""
    out.head("Links between GPUs, as `nvidia-smi topo -m` has them and explains")
    if not found.links:
        out.row("links", NOT_AVAILABLE)
        return
    for number, row in enumerate(found.links):
        out.lines.append((f"  {number:>4}" + "".join(f"{word:>6}" for word in row), ""))
    pairs = [(a, b) for a, row in enumerate(found.links) for b in range(a + 1, len(row))]
    joined = [(a, b) for a, b in pairs if found.links[a][b].startswith("NV")]
    measured = f"The guide measured {NVLINK_SECONDS} s with NVLink, {PCIE_SECONDS} s without (GPT-2 on 2 TITAN RTX)"
    if len(joined) == len(pairs):
        out.row("DDP", f"sends gradients only. {measured}; NCCL_P2P_DISABLE=1 shows the difference here.")
        out.row("FSDP", "sends parameters and gradients, and wants NVLink: here it is.")
        return
    out.row("DDP", f"sends gradients only: it works over PCIe, and is slower. {measured}.")
    out.row("FSDP", "sends parameters too, and wants NVLink: over PCIe it makes a model fit, and is not for speed.")
    if joined:
        best = ",".join(map(str, joined[0]))
        named = ", ".join(f"{a} and {b}" for a, b in joined)
        out.row("", f"NVLink joins {named}: a job of two does best there, CUDA_VISIBLE_DEVICES={best}.")
