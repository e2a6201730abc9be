"""What a job needs of the host's memory, at least, and whether that is free: said before the kernel ends the job."""

import contextlib
from collections.abc import Iterator

import torch

from legroom.config import Config
from legroom.machine import host
from legroom.models import architectures, builder
from legroom.options import data as data_options
from legroom.options import task
from legroom.units import GIB

# Of 4 bytes a parameter each.
WITH_TWO_STATES = ("adamw_torch", "adamw_torch_fused", "schedule_free_adamw", "stable_adamw")


def sizes(cfg: Config) -> tuple[int, int]:
    """(bytes of the model's weights as they are loaded, bytes of a token's logits and of what the loss makes of them in
    fp32), from a model without memory. 0 where none can be built."""
    with contextlib.suppress(Exception):  # whatever is wrong with the model is said where it is built
        config = builder.configuration(cfg)
        asked = task.task_of(cfg, config)
        kind = architectures.model_class(config, asked)
        assert kind is not None
        model = architectures.without_memory(kind, config)
        model.tie_weights()
        count = sum(weight.numel() for weight in model.parameters())
        bits = cfg.adapter.bits or 8 * getattr(torch, cfg.model_dtype).itemsize
        whole_logits = asked in task.OF_TOKENS and cfg.loss.kind != "chunked"
        return count * bits // 8, 2 * 4 * (architectures.vocabulary(config) or 0) * whole_logits
    return 0, 0


def needs(cfg: Config, local_ranks: int) -> Iterator[tuple[str, int, str]]:
    """(what takes it, bytes of the host's memory at least, what to type instead), in the order of the job's phases.

    local_ranks: how many of the job's ranks are on this machine. Beside a GPU the weights are loaded by way of the
    host, and what is saved is copied there. Conversations are shorter than data.seq_len: their logits do not count.
    """
    (weights, of_token), on_cpu, own = sizes(cfg), not cfg.target.on_gpu, cfg.parallelism
    trained, sharded = 0 if cfg.adapter.is_used else weights, own.sharded
    itemsize = getattr(torch, cfg.model_dtype).itemsize
    states = trained * 2 * 4 // itemsize if cfg.optim.algorithm in WITH_TWO_STATES else 0
    on_host, copies = on_cpu or own.steps_on_host, local_ranks // (own.stages or 1)
    ranks = 1 if sharded else max(1, copies)
    steps = 1 if own.steps_on_host else ranks  # ranks whose step is the host's share its states out
    gradients = trained * cfg.optim.keeps_gradients
    what = "weights, gradients and optimizer states" if on_host and trained else "the weights"
    smaller = "Choose a smaller model, or precision=bf16_pure, or see recipe=estimate."
    yield what, ranks * weights + (steps * (gradients + states) if on_host else 0), smaller
    held = steps * (weights + states) if on_host else 0  # between two steps
    if cfg.save.every_steps:
        rarer = "Leave save.every_steps out, or choose an optimizer with smaller states."
        yield "a checkpoint beside what is trained", held + trained + states, rarer
    if cfg.save.final and (trained or cfg.save.merge):  # an adapter alone is small
        copied = not on_cpu or sharded or cfg.save.merge
        fewer = "Type save.merge=false." if cfg.save.merge else "Type save.final=false, or see docs/parallelism.md."
        yield "the copy of the saved model beside what is trained", held + weights * copied, fewer
    if on_cpu and cfg.eval.enabled and not task.has_conversations(cfg):
        rows = local_ranks * min(cfg.eval.batch, cfg.data.eval_samples or cfg.eval.batch)
        logits = rows * data_options.window_and_stride(cfg)[0] * of_token
        yield "the logits of an evaluation beside what is trained", held + logits, "Type a smaller eval.batch."


def shortage(cfg: Config, local_ranks: int) -> str | None:
    """A warning for the start of a job that needs more than is free, or None. local_ranks: see `needs`."""
    free, limit = host.free_memory_bytes(), cfg.launch.memory_limit_gib
    source = "are free on this machine, or under the limit of its control group (container, SLURM)"
    allowed = int(limit * GIB * local_ranks) if limit is not None and not cfg.target.on_gpu else None
    if allowed is not None and (free is None or allowed < free):
        free, source = allowed, "are allowed by launch.memory_limit_gib"
    if free is None:
        return None
    for what, needed, instead in needs(cfg, local_ranks):
        if needed > free:
            return (
                f"{what}: at least {needed / GIB:.2f} GiB of the host's memory, and {free / GIB:.2f} GiB {source}. The "
                f"job may run out of memory there, or be killed by the kernel. {instead}"
            )
    return None
