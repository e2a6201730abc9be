"""The host's memory that a job needs at least: a warning before it starts, since the kernel ends a job without one."""

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
    try:
        config = builder.configuration(cfg)
        model_task = task.task_of(cfg, config)
        kind = architectures.model_class(config, model_task)
        assert kind is not None
        model = architectures.without_memory(kind, config)
        model.tie_weights()
    except Exception:  # such a model is refused where it is built
        return 0, 0
    parameters = sum(weight.numel() for weight in model.parameters())
    bits = cfg.adapter.bits or 8 * getattr(torch, cfg.model_dtype).itemsize
    logits_bytes = 0
    if model_task in task.OF_TOKENS and cfg.loss.kind != "chunked":
        logits_bytes = 2 * 4 * (architectures.vocabulary(config) or 0)
    return parameters * bits // 8, logits_bytes


def needs(cfg: Config, local_ranks: int) -> Iterator[tuple[str, int, str]]:
    """(what takes it, bytes of the host's memory at least, what to type instead), in the order of the job's phases.

    local_ranks: how many of the job's ranks are on this machine. Beside a GPU the weights are loaded by way of the
    host, and what is saved is copied there. Conversations are shorter than data.seq_len: their logits do not count.
    """
    weights, logits_of_token = sizes(cfg)
    mode = cfg.parallelism
    on_cpu = not cfg.target.on_gpu
    steps_on_host = on_cpu or mode.steps_on_host
    trained = 0 if cfg.adapter.is_used else weights  # an adapter is small
    gradients = trained if cfg.optim.keeps_gradients else 0
    states = 0
    if cfg.optim.algorithm in WITH_TWO_STATES:
        states = 2 * 4 * trained // getattr(torch, cfg.model_dtype).itemsize
    copies = 1  # of the weights on this machine
    if not mode.sharded:
        copies = max(1, local_ranks // (mode.stages or 1))
    copies_of_states = copies
    if mode.steps_on_host:  # the ranks share the states out
        copies_of_states = 1

    training = copies * weights
    between_steps = 0
    what = "the weights"
    if steps_on_host:
        training += copies_of_states * (gradients + states)
        between_steps = copies_of_states * (weights + states)
        if trained:
            what = "weights, gradients and optimizer states"
    yield what, training, "Choose a smaller model, or precision=bf16_pure, or see recipe=estimate."

    if cfg.save.every_steps:
        instead = "Leave save.every_steps out, or choose an optimizer with smaller states."
        yield "a checkpoint beside what is trained", between_steps + trained + states, instead

    if cfg.save.final and (trained or cfg.save.merge):
        is_copied = not on_cpu or mode.sharded or cfg.save.merge
        saved = weights if is_copied else 0
        instead = "Type save.merge=false." if cfg.save.merge else "Type save.final=false, or see docs/parallelism.md."
        yield "the copy of the saved model beside what is trained", between_steps + saved, instead

    if on_cpu and cfg.eval.enabled and not task.has_conversations(cfg):
        rows = local_ranks * min(cfg.eval.batch, cfg.data.eval_samples or cfg.eval.batch)
        window, _ = data_options.window_and_stride(cfg)
        logits = rows * window * logits_of_token
        yield "the logits of an evaluation beside what is trained", between_steps + logits, "Type a smaller eval.batch."


def shortage(cfg: Config, local_ranks: int) -> str | None:
    """A warning for the start of a job that needs more than is free, or None. local_ranks: see `needs`."""
    free = host.free_memory_bytes()
    source = "are free on this machine, or under the limit of its control group (container, SLURM)"
    limit = cfg.launch.memory_limit_gib
    if limit is not None and not cfg.target.on_gpu:
        allowed = int(limit * GIB * local_ranks)
        if free is None or allowed < free:
            free = allowed
            source = "are allowed by launch.memory_limit_gib"
    if free is None:
        return None
    for what, needed, instead in needs(cfg, local_ranks):
        if needed > free:
            return (
                f"{what}: at least {needed / GIB:.2f} GiB of the host's memory, and {free / GIB:.2f} GiB {source}. The "
                f"job may run out of memory there, or be killed by the kernel. {instead}"
            )
    return None
