"""The doctor's sections on GPUs: each card, and the links between them."""

from legroom.doctor.checks import Findings
from legroom.doctor.lines import NOT_AVAILABLE, Page
from legroom.machine.nvml import IDLE_GPU_BYTES, Card
from legroom.units import GIB

# Lowest compute capability: NVIDIA's CUDA programming guide, and flash-attn's own README for the last
SUPPORT = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "flash attention 2": (8, 0)}
HOT_CELSIUS = 80  # the guide's 'Custom hardware for training': below it is good, throttling from 84 to 90


def card_section(out: Page, found: Findings, card: Card) -> None:
    """A card: its memory, what it supports, and what slows it down."""
    out.head(f"GPU {card.index}: {card.name or 'name ' + NOT_AVAILABLE}")
    if card.memory_bytes is None or card.used_bytes is None:
        out.row("memory", NOT_AVAILABLE)
    else:
        used = f"{card.used_bytes / GIB:.1f} GiB of it in use before this check"
        out.row("memory", f"{card.memory_bytes / GIB:.1f} GiB, {used}")
    if card.processes:
        holders = ", ".join(
            f"{name} (pid {pid}{f', {size / GIB:.1f} GiB' if size else ''})" for pid, name, size in card.processes
        )
        out.row("in use by", f"{holders}: a run beside it gets less memory and time", "yellow")
    elif (card.used_bytes or 0) > IDLE_GPU_BYTES:
        out.row("in use by", "programs that NVML does not name, in another container perhaps", "yellow")
    out.row("supports", supports(found, card))
    out.row("power and heat", *power_and_heat(card))
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
    said = filter(None, [", ".join(have), f"not {', '.join(lack)}" if lack else ""])
    return f"compute capability {card.capability[0]}.{card.capability[1]}: {'; '.join(said)}"


def power_and_heat(card: Card) -> tuple[str, str]:
    """The power limit beside the card's default, the temperature, and what slows the card down; and a style."""
    low = bool(card.limit_watts and card.default_watts and card.limit_watts < card.default_watts - 0.5)
    facts = [
        f"{card.limit_watts:.0f} W at most" if card.limit_watts else "",
        f"below its default of {card.default_watts:.0f} W" if low else "",
        f"{card.celsius} C{' (HOT)' * (card.celsius >= HOT_CELSIUS)}" if card.celsius is not None else "",
        f"slowed down at this moment, by {' and '.join(card.throttled_by)}" if card.throttled_by else "",
    ]
    hot = (card.celsius or 0) >= HOT_CELSIUS
    return ", ".join(filter(None, facts)) or NOT_AVAILABLE, "yellow" if low or hot or card.throttled_by else ""


def links_section(out: Page, found: Findings) -> None:
    """How the GPUs are linked."""
    out.head("Links between GPUs, as `nvidia-smi topo -m` has them and explains")
    if not found.links:
        out.row("links", NOT_AVAILABLE)
        return
    for number, row in enumerate(found.links):
        out.lines.append((f"  {number:>4}" + "".join(f"{word:>6}" for word in row), ""))
    joined = [
        f"{a},{b}" for a, row in enumerate(found.links) for b in range(a + 1, len(row)) if row[b].startswith("NV")
    ]
    said = "none: DDP, which sends gradients only, is slower; FSDP makes a model fit, and is not for speed"
    if joined:
        said = f"joins {' and '.join(joined)}: a job on such cards alone (CUDA_VISIBLE_DEVICES={joined[0]}) has it"
    out.row("NVLink", said)
