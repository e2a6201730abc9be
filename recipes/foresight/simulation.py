"""What a configuration would take on a GPU: the step of the raw loop on a fake device, and what its tape says.

The first step creates the optimizer's states, the second is every later one. Of the micro-batches of an
accumulation of equal ones two tell all there is: one that makes the gradients, and one that adds to them; with other
ranks three: the last one sends the gradients, too.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace

from recipes.data import collate, data_loader
from recipes.foresight.memory import allocator
from recipes.foresight.memory.settings import UNLIMITED, settings_from
from recipes.machine import host
from recipes.options import parallelism
from recipes.parallelism import fsdp
from recipes.ranks import collectives
from recipes.training import setup

MICRO_BATCHES = 2
AS_AMPERE = (8, 0)  # torch for ROCm has flash and efficient attention, as CUDA has there, and no cuDNN
REPEATS = 3  # of the steady step in the allocator: until nothing new is reserved


@dataclass
class SimulatedStep:
    """The figures of one process. Bytes; `parts` as `Ledger.parts` gives them. None on a CPU, which has no allocator."""

    parts: dict
    parameter_count: int
    samples: int  # of one optimizer step of all ranks
    tokens: int  # of one optimizer step of all ranks
    micro_batches: int  # of one optimizer step
    model_flops: int | None  # of one optimizer step
    demand: allocator.Demand | None
    paged_bytes: int  # of optimizer states, outside the allocator
    tally: object  # operations.Tally of one optimizer step
    evaluates: bool  # there are rows to evaluate on
    warnings: list[str]
    tape: object


def amd(cfg) -> bool:
    """Whether the GPU is AMD's: capabilities are NVIDIA's word, and say nothing of it."""
    return cfg.gpu.link == "xgmi"


def _batches(loader, count: int) -> list:
    """What `count` more micro-batches, all on the device before the step begins, consist of."""
    import torch

    if not count:
        return []
    first = next(iter(loader))
    return [torch.empty_like(tensor) for tensor in first.values() for _ in range(count)]


def _fake_model(fake, cfg, build_model: setup.BuildModel):
    """The model on the fake device, with no weights initialised or read; this rank's shards under FSDP."""
    with fake.building():
        model = build_model(weights=False)
        model.tie_weights()  # part of the initialisation that `building` leaves out
    if parallelism.sharded(cfg):
        fsdp.shard(cfg, model, fake.device.type)
    return model


def simulate_step(cfg, folder: str, capacity_bytes: int = UNLIMITED, telling: bool = False) -> SimulatedStep:
    """Run two steps of a resolved configuration on tensors that do not exist.

    capacity_bytes: what the GPU has for torch's allocator. telling: the tape knows who made each tensor, too.
    Raises Refusal as a run would.
    """
    from recipes.foresight.fake_gpu import library_patches
    from recipes.foresight.fake_gpu.attribution import AttributedTrace
    from recipes.foresight.fake_gpu.device import FakeDevice
    from recipes.foresight.fake_gpu.op_trace import OpTrace

    # Compiled code allocates where nobody sees it: the step as it is written. And torch has flash attention of its own.
    kernel = "sdpa" if cfg.model.attention == "flash_attention_2" else cfg.model.attention
    cfg = replace(cfg, compile=False, model=replace(cfg.model, attention=kernel))
    gpu = host.gpu(cfg)
    capability = None if gpu is None else AS_AMPERE if amd(cfg) else gpu.capability
    fake = FakeDevice(capability)
    with fake, library_patches.pretended(fake), library_patches.ranks_of(cfg, fake):
        training = setup.build(
            cfg,
            folder,
            functools.partial(library_patches.training_arguments, device=fake.device),
            functools.partial(_fake_model, fake),
        )
        args, rows, network, loop = training.args, training.data, training.model, training.loop
        steps = min(args.gradient_accumulation_steps, len(data_loader.largest_step(rows, args)))
        optimizer = getattr(loop.optimizer, "optimizer", loop.optimizer)
        tape = (AttributedTrace if telling else OpTrace)(network, optimizer, fake.device, capability)
        enough = min(steps, MICRO_BATCHES + collectives.is_distributed()) if rows.collate is collate.stack else steps
        held = _batches(data_loader.largest_step(rows, args), steps - enough)
        for tensor in held:
            tape.hold(tensor)
        for micro_batches in (1, enough):
            args.gradient_accumulation_steps = micro_batches
            tokens = loop.one_more_step(tape)
            library_patches.settle_buckets(loop.model)
    at_once = args.train_batch_size * rows.ranks
    samples = min(at_once * steps, len(rows.train))  # a step larger than the data has what there is
    more = samples / min(at_once * micro_batches, len(rows.train))
    paged = sum(entry.bytes for entry in tape.paged.values())
    demand, unknown, scarce = None, [], []
    if samples < at_once * cfg.accumulation.steps:
        scarce = [
            f"a step is to have {at_once * cfg.accumulation.steps:,} samples, and there are {samples:,} to train on: the "
            "figures are of a step on those. Give it more data (data.samples), or a smaller batch."
        ]
    if capability is not None:
        settings, unknown = settings_from(
            os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        )
        if settings.memory_fraction < 1:  # setMemoryFraction: of the total, not of what the context leaves
            capacity_bytes = min(capacity_bytes, int(settings.memory_fraction * gpu.memory_bytes))
        demand = allocator.replay(tape.events(REPEATS), capacity_bytes, settings)
    return SimulatedStep(
        parts=tape.parts(),
        parameter_count=sum(weight.numel() for weight in network.parameters()),
        samples=samples,
        tokens=round(tokens * more),
        micro_batches=steps,
        evaluates=rows.eval is not None,
        model_flops=None if tape.model_flops is None else round(tape.model_flops * more),
        demand=demand,
        paged_bytes=paged,
        tally=tape.step_tally(steps),
        warnings=[
            *fake.warnings,
            *scarce,
            *(f"PYTORCH_ALLOC_CONF has {word}, which the estimate does not know." for word in unknown),
        ],
        tape=tape,
    )
