"""What a job needs of the host's memory, at least, and whether that is free: said before the kernel ends the job."""

from __future__ import annotations

import contextlib

import torch

from legroom.config import Config
from legroom.machine import host
from legroom.models import architectures, builder
from legroom.options import task
from legroom.units import GIB

WITH_TWO_STATES = ("adamw", "adamw_fused", "schedule_free", "stable_adamw")  # of 4 bytes a parameter each


def weight_bytes(cfg: Config) -> int:
    """The bytes of the model's weights as they are loaded, from a model without memory. 0 where none can be built."""
    with contextlib.suppress(Exception):  # whatever is wrong with the model is said where it is built
        config = builder.configuration(cfg)
        kind = architectures.model_class(config, task.task_of(cfg, config))
        assert kind is not None
        count = sum(weight.numel() for weight in architectures.without_memory(kind, config).parameters())
        bits = cfg.adapter.bits or 8 * getattr(torch, cfg.precision.weights_dtype).itemsize
        return count * bits // 8
    return 0


def shortage(cfg: Config, local_ranks: int) -> str | None:
    """A warning for the start of a job that needs more than is free, or None.

    local_ranks: how many of the job's ranks are on this machine. On a CPU these are the weights, and for a training of
    all of them its gradients and optimizer states; beside a GPU, where saving takes as much again, the weights.
    """
    weights, on_cpu = weight_bytes(cfg), host.device(cfg) == "cpu"
    needed, what = weights * (1 if cfg.parallelism.sharded else local_ranks), "the weights"
    if on_cpu and not cfg.adapter.is_used:
        itemsize = getattr(torch, cfg.precision.weights_dtype).itemsize
        states = 2 * 4 // itemsize if cfg.optim.name in WITH_TWO_STATES else 0
        needed += needed * (cfg.optim.keeps_gradients + states)
        what = "weights, gradients and optimizer states"
    free, limit = host.free_memory_bytes(), cfg.launch.memory_limit_gib
    source = "are free on this machine, or under the limit of its control group (container, SLURM)"
    if on_cpu and limit is not None and (free is None or limit * GIB * local_ranks < free):
        free, source = int(limit * GIB * local_ranks), "are allowed by launch.memory_limit_gib"
    if free is None or needed <= free:
        return None
    return (
        f"{what} take at least {needed / GIB:.2f} GiB of the host's memory, and {free / GIB:.2f} GiB {source}: "
        "loading, training or saving may run out of memory, or be killed by the kernel. Choose a smaller model, or "
        "precision=bf16_pure, or see recipe=estimate."
    )
