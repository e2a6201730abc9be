"""One more step under the memory ledger after the training, and the record's memory figures of all ranks."""

import statistics
import time
import traceback
from typing import Any

import torch

from legroom.config import Config
from legroom.machine import gpu_specs
from legroom.measure.memory_ledger import MemoryLedger
from legroom.measure.step_log import StepLog
from legroom.measure.timeline import timeline
from legroom.parallelism import unwrap
from legroom.ranks import collectives
from legroom.records.messages import Progress
from legroom.records.record import Memory, Record


def count(
    cfg: Config, record: Record, loop: Any, step_log: StepLog, progress: Progress, with_timeline: bool = False
) -> dict[str, Any] | None:
    """Takes one more step under the ledger, and puts the five parts of memory and the FLOPs into the record.

    loop: a `Loop` of either recipe. A failure is a warning with one rank, and raised with several. Returns the timeline
    of the step's memory (`measure.timeline`) where it is wanted and nothing failed.
    """
    start = time.perf_counter()
    optimizer = unwrap.inner_optimizer(loop.optimizer)
    ledger = MemoryLedger(loop.bare_model, optimizer, loop.accelerator.device, record_origins=with_timeline)
    try:
        step_tokens = one_more_step(cfg, loop, ledger)
    except Exception as error:
        return say_failure("the five parts of memory could not be counted", error, progress)
    finally:
        record.speed.ledger_seconds = time.perf_counter() - start
    for key, value in ledger.parts().items():
        setattr(record.memory, key, value)
    if ledger.model_flops is not None and not cfg.model.flash_attention:  # which has no FLOP formula
        _set_flops(cfg, record, ledger.model_flops, step_tokens, statistics.mean(step_log.tokens), loop)
    return None if ledger.origins is None else timeline(ledger.log, ledger.origins)


def one_more_step(cfg: Config, loop: Any, around: Any) -> int:
    """Takes one more step of a loop of either recipe, as it is written, inside a context. Returns its tokens."""
    if cfg.compiles:  # allocations and operations of compiled code are not seen
        torch.compiler.set_stance("force_eager")
    if loop.accelerator.scaler is not None:
        loop.accelerator.scaler.update(1.0)  # a scale without overflow: the optimizer's step must not be skipped
    return loop.one_more_step(around)


def say_failure(what: str, error: Exception, progress: Progress) -> None:
    """A failure of such a step is a warning with one rank, and raised with several, which are in the middle of it."""
    if collectives.is_distributed():
        raise error
    traceback.print_exception(error)
    progress.warn(f"{what}: {type(error).__name__}: {error}")


def _set_flops(cfg: Config, record: Record, model_flops: int, step_tokens: int, mean_tokens: float, loop: Any) -> None:
    """Sets the FLOPs of a mean step, and the model FLOPs utilization (MFU) on a GPU of known peak.

    model_flops, step_tokens: of the ledger's step on this rank and on all ranks. The ledger's step is the largest, so
    its FLOPs are scaled by tokens, which neglects the quadratic part of attention.
    """
    speed = record.speed
    processes = cfg.parallelism.num_processes or 1
    all_ranks_flops = model_flops * processes  # with dp one process runs all replicas
    if cfg.parallelism.experts or cfg.parallelism.stages:  # of which some have more to compute than others
        all_ranks_flops = sum(collectives.all_gather(model_flops))
    speed.model_flops_per_step = round(all_ranks_flops * mean_tokens / step_tokens)
    gpus = max(processes, cfg.parallelism.replicas)
    peak_flops = gpu_specs.peak_flops(record.environment["device_name"], cfg.precision.name)
    if peak_flops and speed.step_seconds_median and loop.accelerator.device.type == "cuda":
        speed.mfu = speed.model_flops_per_step / speed.step_seconds_median / (peak_flops * gpus)


def take_largest(memory: Memory) -> None:
    """Sets the record's figures to those of the rank with the highest peak, and `all_ranks_bytes` to the sums."""

    def peak_bytes(rank: dict[str, Any]) -> int:
        return rank["peak_allocated_bytes"] or rank["peak_tensor_bytes"] or 0

    largest = max(memory.per_rank, key=peak_bytes)
    for key, value in largest.items():
        if key != "rank":
            setattr(memory, key, value)
        if key.endswith("_bytes") and isinstance(value, int):
            memory.all_ranks_bytes[key] = sum(rank[key] or 0 for rank in memory.per_rank)
