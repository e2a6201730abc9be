"""The ledger's step after the training, and what comes of it in the record: parts of memory, FLOPs, each rank's own."""

from __future__ import annotations

import statistics
import time
import traceback
from dataclasses import asdict

from recipes.ranks import collectives, rank_info
from recipes.records import record


def count(cfg, outcome: record.Record, loop, journal, progress) -> None:
    """The ledger's step: the five parts at the peak, and the model's FLOPs."""
    from recipes.machine import gpu_specs
    from recipes.measure.memory_ledger import MemoryLedger

    start = time.perf_counter()
    import torch

    optimizer = loop.optimizer
    while hasattr(optimizer, "optimizer"):  # Accelerate's wrapper, and DeepSpeed's inside it
        optimizer = optimizer.optimizer
    ledger = MemoryLedger(loop.bare_model, optimizer, loop.accelerator.device)
    try:
        if cfg.compile:  # compiled code allocates behind the ledger's back: count the step as written
            torch.compiler.set_stance("force_eager")
        if loop.accelerator.scaler is not None:
            loop.accelerator.scaler.update(1.0)  # no overflow: this step must not be skipped
        tokens = loop.one_more_step(ledger)
    except Exception as error:
        if collectives.is_distributed():  # the others are in the middle of it: the job ends here
            raise
        traceback.print_exc()
        progress.warn(f"the five parts of memory could not be counted: {type(error).__name__}: {error}")
        return
    finally:
        outcome.speed.ledger_seconds = time.perf_counter() - start
    for key, value in ledger.parts().items():
        setattr(outcome.memory, key, value)
    if ledger.model_flops is None or cfg.model.attention == "flash_attention_2":  # a kernel without a formula
        return
    speed = outcome.speed
    # The ledger's step is the largest; a usual one has as many FLOPs as it has tokens, to a good approximation.
    usual = statistics.mean(journal.tokens)
    everywhere = ledger.model_flops * cfg.parallelism.num_processes  # with dp one process sees all replicas
    speed.model_flops_per_step = round(everywhere * usual / tokens)
    gpus = max(cfg.parallelism.num_processes, cfg.parallelism.replicas)
    peak = gpu_specs.peak_flops(outcome.environment["device_name"], cfg.precision.name)
    if peak and speed.step_seconds_median and loop.accelerator.device.type == "cuda":
        speed.mfu = speed.model_flops_per_step / speed.step_seconds_median / (peak * gpus)


def per_rank(memory: record.Memory, place: rank_info.RankInfo) -> list[dict]:
    """Each rank's own memory."""
    own = {key: value for key, value in asdict(memory).items() if key not in ("per_rank", "all_ranks_bytes")}
    return collectives.all_gather({"rank": place.rank} | own)


def take_largest(memory: record.Memory) -> None:
    """Of several ranks the record's own figures are those of the one with the highest peak; the sums stand beside."""

    def peak(rank):
        return rank["peak_allocated_bytes"] or rank["peak_tensor_bytes"] or 0

    largest = max(memory.per_rank, key=peak)
    for key, value in largest.items():
        if key != "rank":
            setattr(memory, key, value)
    for key in largest:
        if key.endswith("_bytes") and isinstance(largest[key], int):
            memory.all_ranks_bytes[key] = sum(rank[key] or 0 for rank in memory.per_rank)
