"""The host's memory that a training needs at least: a warning before it starts, since the kernel ends one without it.

The phases are those of an estimate (`host`), for a training of which no step is simulated: its sizes are counted on a
model without memory, and activations are left out.
"""

from typing import Any

import torch

from legroom.config import Config
from legroom.foresight import host, instant
from legroom.foresight.kept_bytes import Built, Heap, Stored
from legroom.machine import host as machine
from legroom.models import architectures, builder
from legroom.options import data as data_options
from legroom.options import task
from legroom.records.record import EVALUATION
from legroom.units import GIB

# Of 4 bytes a parameter each.
WITH_TWO_STATES = ("adamw_torch", "adamw_torch_fused", "schedule_free_adamw", "stable_adamw")
# What the first phases of a training need anyway, in the order in which they come.
ORDER = ("loading", "step", "checkpoint", "final save", EVALUATION)


def shortage(cfg: Config, ranks: int) -> str | None:
    """A warning for the start of a job that needs more than is free, or None. ranks: of the job, on this machine."""
    free = machine.free_memory_bytes()
    source = "are free on this machine, or under the limit of its control group (container, SLURM)"
    limit = cfg.launch.memory_limit_gib
    if limit is not None and not cfg.target.on_gpu:
        allowed = int(limit * GIB * ranks)
        if free is None or allowed < free:
            free = allowed
            source = "are allowed by launch.memory_limit_gib"
    if free is None:
        return None
    phases = needs(cfg, ranks)
    for phase in ORDER:
        parts = phases.get(phase, {})
        needed = sum(parts.values())
        if needed > free:
            what = " and ".join(parts)
            return (
                f"the phase '{phase}' needs at least {needed / GIB:.2f} GiB of the host's memory ({what}), and "
                f"{free / GIB:.2f} GiB {source}. The job may run out of memory there, or be killed by the kernel. "
                f"{host.instead(cfg, phase)} recipe=estimate has all phases."
            )
    return None


def needs(cfg: Config, ranks: int) -> host.Phases:
    """Phase -> part -> bytes of the host's memory at least, of all ranks on this machine."""
    phases = host.of_training(cfg, least(cfg), ranks)
    for parts in phases.values():
        for name in (host.MODEL_FILES, host.OPENED_AGAIN):
            parts.pop(name, None)
    if task.has_conversations(cfg):  # they are shorter than data.seq_len: their logits do not count
        phases.pop(EVALUATION, None)
    return phases


def least(cfg: Config) -> Stored:
    """What one rank keeps at least. All zero where no model can be built: such a one is refused where it is built."""
    mode = cfg.parallelism
    model = _model(cfg)
    itemsize = getattr(torch, cfg.model_dtype).itemsize
    parameters = largest = adapted = 0
    if model is not None:
        parameters = sum(weight.numel() for weight in model.parameters())
        largest = max(weight.numel() for weight in model.parameters()) * itemsize
        adapted = _beside_adapters(cfg, model) * itemsize
    weights = parameters * (cfg.adapter.bits or 8 * itemsize) // 8
    trained = 0 if cfg.adapter.is_used else weights  # an adapter is small
    parts = instant.parts(cfg)
    gradients = trained // parts if cfg.optim.keeps_gradients else 0
    states = 0
    if cfg.optim.algorithm in WITH_TWO_STATES:
        states = 2 * 4 * trained // itemsize // parts
    if mode.offload not in (None, "none"):  # DeepSpeed's ranks share out what is on the host
        gradients, states = (each * parts // mode.world_size for each in (gradients, states))
    built = Built(parameters * itemsize, 0, largest, 0, weights // parts, trained, adapted)
    heap = None
    on_host = (0, 0)
    if not cfg.target.on_gpu:
        kept = weights // parts + states
        heap = Heap(kept + gradients, kept, kept + trained // parts + states, kept + _logits_bytes(cfg, model))
    elif mode.steps_on_host:
        are_weights = bool(mode.cpu_offload) or mode.offload == "all"
        on_host = (weights // mode.world_size if are_weights else 0, states)
    peak = sum(on_host) + gradients
    return Stored(built, 0, 0, states, trained // parts, on_host, peak, 0, heap)


def weight_bytes(cfg: Config) -> int:
    """Bytes of the model's weights as they are kept; 0 where none can be built."""
    return least(cfg).built.stored * instant.parts(cfg)


def _model(cfg: Config) -> Any:
    """The model without memory; None where none can be built."""
    try:
        config = builder.configuration(cfg)
        kind = architectures.model_class(config, task.task_of(cfg, config))
        assert kind is not None
        model = architectures.without_memory(kind, config)
        model.tie_weights()
    except Exception:  # such a model is refused where it is built
        return None
    return model


def _beside_adapters(cfg: Config, model: Any) -> int:
    """Weights of the layers beside which an adapter lies; 0 where their names would have to be matched."""
    if not cfg.adapter.is_used or cfg.adapter.targets != "all-linear":
        return 0
    output = model.get_output_embeddings()
    count = 0
    for module in model.modules():
        is_linear = isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"  # GPT-2's
        if is_linear and module is not output:
            count += module.weight.numel()
    return count


def _logits_bytes(cfg: Config, model: Any) -> int:
    """Of the logits of an evaluation's batch on one rank, and of what the loss makes of them, in fp32."""
    if model is None or cfg.loss.kind == "chunked":
        return 0
    config = model.config
    if task.task_of(cfg, config) not in task.OF_TOKENS:
        return 0
    rows = min(cfg.eval.batch, cfg.data.eval_samples or cfg.eval.batch)
    window, _ = data_options.window_and_stride(cfg)
    return rows * window * 2 * 4 * (architectures.vocabulary(config) or 0)
