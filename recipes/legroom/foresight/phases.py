"""What each phase of a training needs, on the device and on the host, and whether a verdict holds for all of them.

The step and the evaluation are replayed to the byte (`prediction`, `evaluation_memory`). The other phases are sums of
what is alive in them (`stored`), so they count where they need more than a step does: loading the whole model before it
is sharded, merging an adapter, the host's memory.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from legroom import units
from legroom.config import Config
from legroom.foresight import host
from legroom.foresight.kept_bytes import Stored
from legroom.machine import host as machine
from legroom.machine import instances
from legroom.models import builder
from legroom.records.record import DOES_NOT_FIT, EVALUATION, FITS, HOST, TIGHT, Error, Record
from legroom.training.generate import TOKENS
from legroom.units import GIB

ORDER = ("loading", "preparing", "step", EVALUATION, "generation", "checkpoint", "final save")
RECORDED = {  # phase -> what a record calls it
    "loading": "load",
    "preparing": "load",
    "generation": "eval",
    "checkpoint": "save",
    "final save": "save",
    EVALUATION: "eval",
}
MUCH = 64 * GIB  # of a host whose memory is not known, from which on it is said
# What to type where a phase lacks room on the device.
ON_DEVICE = {
    "loading": "Type adapter=qlora, or parallelism=fsdp over more GPUs; or choose a smaller model.",
    "preparing": "Type adapter=lora, or parallelism=fsdp over more GPUs.",
    "generation": "Leave eval.generate out.",
    "checkpoint": "Leave save.every_steps out.",
    "final save": "Type save.merge=false.",
}


@dataclass(frozen=True)
class Phase:
    """What a phase needs: bytes of one GPU, with the context and NCCL; and of a machine's memory, with its parts."""

    phase: str
    device_bytes: int | None
    host_bytes: int | None
    host_parts: dict[str, int]


def enter(cfg: Config, outcome: Record, kept: Stored, outside_bytes: int) -> None:
    """Enter the phases into a record that has the step and the evaluation; the verdict changes where another one lacks
    room.

    kept: of the rank that is estimated. outside_bytes: what CUDA's context and NCCL take of each GPU.
    """
    on_host = host.by_phase(cfg, kept)
    on_device: dict[str, int] = {}
    if cfg.target.gpu is not None:
        on_device = _on_device(cfg, outcome, kept, outside_bytes)
    memory = outcome.memory
    phases = []
    for name in ORDER:
        parts = on_host.get(name, {})
        if name in on_device or parts:
            phases.append(Phase(name, on_device.get(name), sum(parts.values()) or None, parts))
    memory.phases = [asdict(phase) for phase in phases]
    memory.host_needed_bytes = max(phase.host_bytes or 0 for phase in phases)
    memory.checkpoint_bytes = host.checkpoint_bytes(cfg, kept)
    memory.disk_bytes = host.disk_bytes(cfg, kept) or None
    memory.host_memory_bytes = known_host_bytes(cfg)
    outcome.warnings += _disk_warning(cfg, memory.disk_bytes or 0)
    if outcome.estimate is not None:
        _judge_device(outcome, phases)
    if cfg.gpu.unified and outcome.estimate is not None:
        _judge_shared(cfg, outcome, phases)
    else:
        _judge_host(cfg, outcome, phases)


def known_host_bytes(cfg: Config) -> int | None:
    """The memory of a machine: gpu.host_memory_gib, or this machine's where the training is to run on its CPU."""
    if cfg.target.on_gpu:
        return None if cfg.gpu.host_memory_gib is None else int(cfg.gpu.host_memory_gib * GIB)
    return machine.memory_bytes()


def _disk_warning(cfg: Config, needed: int) -> list[str]:
    """A warning where the local disks of a cloud's machine are too small for checkpoints and the saved model."""
    instance = instances.find(cfg.gpu.instance) if cfg.gpu.instance else None
    if instance is None or instance.disk_gb is None or needed <= instance.disk_gb * 1e9:
        return []
    return [
        f"the disk: {units.size(needed)} are needed for checkpoints and the saved model, and {instance.name} has "
        f"{instance.disk_gb:,g} GB of local disk. Attach a volume, or type a smaller save.keep."
    ]


# --- the device ----------------------------------------------------------------------------------------


def _on_device(cfg: Config, outcome: Record, kept: Stored, outside_bytes: int) -> dict[str, int]:
    """Phase -> bytes of one GPU, with the context and NCCL."""
    estimate = outcome.estimate
    assert estimate is not None
    whole = 0
    if cfg.parallelism.sharded or cfg.adapter.bits:  # sent to all ranks, or quantised, one at a time
        whole = kept.built.largest
    weights = kept.built.stored - kept.on_host[0]
    phases = {
        "loading": max(0, weights) + whole,
        "preparing": kept.prepared,
        "step": (outcome.memory.device_used_bytes or 0) - outside_bytes,
    }
    if estimate.evaluation_margin_bytes is not None:
        limit = estimate.limit_bytes or estimate.capacity_bytes
        phases[EVALUATION] = limit - estimate.evaluation_margin_bytes - outside_bytes
    if cfg.eval.generate:
        phases["generation"] = kept.kept + _generation_bytes(cfg)
    if cfg.save.every_steps or host.saves_model(cfg):
        phases["checkpoint"] = kept.kept
    if host.saves_model(cfg):
        phases["final save"] = kept.kept + _saving_bytes(cfg, kept)
    return {phase: size + outside_bytes for phase, size in phases.items()}


def _saving_bytes(cfg: Config, kept: Stored) -> int:
    """Of the layer that is merged or the weight that is gathered: one at a time, merged in fp32 beside itself."""
    if cfg.save.merge:
        return 3 * 4 * kept.built.largest // _itemsize(cfg)
    if cfg.parallelism.sharded:
        return kept.built.largest
    return 0


def _generation_bytes(cfg: Config) -> int:
    """Of the keys and values of one row and its answer, and of a layer's activations."""
    text = builder.configuration(cfg).get_text_config()
    heads = getattr(text, "num_attention_heads", None) or 1
    width = getattr(text, "hidden_size", None) or 0
    head = getattr(text, "head_dim", None) or width // heads
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    layers = getattr(text, "num_hidden_layers", None) or 0
    inner = getattr(text, "intermediate_size", None) or 4 * width
    tokens = (cfg.data.seq_len or 0) + TOKENS
    cache = 2 * layers * key_heads * head
    return tokens * _itemsize(cfg) * (cache + 8 * width + 3 * inner)


def _itemsize(cfg: Config) -> int:
    return {"float32": 4}.get(cfg.model_dtype, 2)


def _judge_device(outcome: Record, phases: list[Phase]) -> None:
    """Change the verdict where a phase needs more than there is, and more than step and evaluation."""
    estimate = outcome.estimate
    assert estimate is not None
    limit = estimate.limit_bytes or estimate.capacity_bytes
    for phase in phases:
        if phase.device_bytes is not None and phase.device_bytes > limit:
            estimate.first_lacking = phase.phase
            break
    worst = max(phases, key=lambda phase: phase.device_bytes or 0)
    margin = limit - (worst.device_bytes or 0)
    if worst.phase not in ON_DEVICE or margin >= 0 or margin >= estimate.margin_bytes:
        return
    estimate.margin_bytes = margin
    estimate.decided_by = worst.phase
    needed = f"{units.size(worst.device_bytes or 0)} are needed in the phase '{worst.phase}'"
    _does_not_fit(outcome, worst.phase, f"{needed}. {units.size(-margin)} are missing.", ON_DEVICE[worst.phase])


def _does_not_fit(outcome: Record, phase: str, text: str, hint: str) -> None:
    """Enter the verdict of a phase that lacks room, and what to type."""
    estimate = outcome.estimate
    assert estimate is not None
    estimate.fits = False
    estimate.verdict = DOES_NOT_FIT
    outcome.status = "oom"
    message = f"it would not fit: {text}"
    outcome.error = Error(RECORDED.get(phase, "step"), "PredictedOutOfMemory", message, hint)


# --- the host ------------------------------------------------------------------------------------------


def _judge_host(cfg: Config, outcome: Record, phases: list[Phase]) -> None:
    """Change the verdict where the host's memory is known and a phase needs more; a warning where it is not known and
    much is needed."""
    memory = outcome.memory
    known = memory.host_memory_bytes
    estimate = outcome.estimate
    if known is None:
        _warn_of_unknown(cfg, outcome, phases)
        return
    if estimate is not None:
        estimate.host_margin_bytes = known - (memory.host_needed_bytes or 0)
    lacking = [phase for phase in phases if (phase.host_bytes or 0) > known]
    if not lacking:
        return
    first = lacking[0]
    missing = units.size((first.host_bytes or 0) - known)
    text = (
        f"the host lacks {missing} in the phase '{first.phase}': {host_text(first)}, and a machine has "
        f"{units.size(known)}."
    )
    hint = host.instead(cfg, first.phase)
    if estimate is None or outcome.error is not None:  # of a training on this CPU, or the device lacks room already
        outcome.warnings.append(f"{text} {hint}")
        return
    estimate.decided_by = HOST
    estimate.first_lacking = first.phase
    _does_not_fit(outcome, first.phase, text, hint)


def _judge_shared(cfg: Config, outcome: Record, phases: list[Phase]) -> None:
    """The verdict of a device whose memory is the host's, too: what both need in a phase counts together.

    Files that are mapped do not count: the kernel gives them up.
    """
    estimate = outcome.estimate
    assert estimate is not None
    capacity = cfg.gpu.memory_bytes - int((cfg.gpu.used_gib or 0) * GIB)
    needed = {}
    for phase in phases:
        mapped = sum(phase.host_parts.get(name, 0) for name in (host.MODEL_FILES, host.OPENED_AGAIN))
        needed[phase.phase] = (phase.device_bytes or 0) + (phase.host_bytes or 0) - mapped
    worst = max(phases, key=lambda phase: needed[phase.phase])
    margin = capacity - needed[worst.phase]
    outcome.memory.host_memory_bytes = capacity
    estimate.host_margin_bytes = margin
    estimate.margin_bytes = min(estimate.margin_bytes, margin)
    device = worst.device_bytes or 0
    text = (
        f"host and device share {units.size(capacity)}: the most is needed in the phase '{worst.phase}', "
        f"{units.size(device)} by the device and {units.size(needed[worst.phase] - device)} by the host"
    )
    if margin < 0 and outcome.error is None:
        estimate.decided_by = HOST
        estimate.first_lacking = worst.phase
        text = f"{text}. {units.size(-margin)} are missing."
        _does_not_fit(outcome, worst.phase, text, host.instead(cfg, worst.phase))
        return
    outcome.warnings.append(f"{text}.")
    if estimate.verdict == FITS and margin < (estimate.kept_bytes or 0):
        estimate.fits = False
        estimate.verdict = TIGHT


def host_text(phase: Phase) -> str:
    """What a phase needs of the host, with its largest part."""
    part = max(phase.host_parts, key=lambda name: phase.host_parts[name])
    return f"{units.size(phase.host_bytes or 0)} are needed ({part} {units.size(phase.host_parts[part])})"


def _warn_of_unknown(cfg: Config, outcome: Record, phases: list[Phase]) -> None:
    most = max(phases, key=lambda phase: phase.host_bytes or 0)
    if (most.host_bytes or 0) < MUCH:
        return
    ranks = host.ranks_here(cfg)
    of = f"{units.plural(ranks, 'rank')} on it together" if ranks > 1 else "its one rank"
    outcome.warnings.append(
        f"the host: {host_text(most)} in the phase '{most.phase}' of a machine with {of}. gpu.host_memory_gib= says "
        "what it has, and the verdict then counts it."
    )
