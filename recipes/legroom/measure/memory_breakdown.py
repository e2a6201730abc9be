"""One more step under the memory ledger after the training, and the record's memory figures of all ranks."""

import statistics
import time
import traceback
from typing import Any

import torch

from legroom.config import Config
from legroom.estimator.ledger.memory_ledger import MemoryLedger
from legroom.estimator.ledger.timeline import timeline
from legroom.machine import gpu_specs
from legroom.measure.step_log import StepLog
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
    flops = collectives.all_gather(ledger.model_flops)  # ranks have rows of other lengths, other layers, other experts
    if None not in flops and not cfg.model.flash_attention:  # which has no FLOP formula
        _set_flops(cfg, record, sum(flops) / step_tokens, statistics.mean(step_log.tokens), loop)
    if ledger.origins is None:
        return None
    return timeline(ledger.log, ledger.origins)


def one_more_step(cfg: Config, loop: Any, around: Any) -> int:
    """Takes one more step of a loop of either recipe, as it is written, inside a context. Returns its tokens."""
    if cfg.compiles:  # allocations and operations of compiled code are not seen
        torch.compiler.set_stance("force_eager")
    if loop.accelerator.scaler is not None:
        loop.accelerator.scaler.update(1.0)  # a scale without overflow: the optimizer's step must not be skipped
    return loop.one_more_step(around)


def say_failure(consequence: str, error: Exception, progress: Progress) -> None:
    """A failure of such a step is a warning with one rank, and raised with several, which are in the middle of it."""
    if collectives.is_distributed():
        raise error
    traceback.print_exception(error)
    progress.warn(f"{consequence}: {type(error).__name__}: {error}")


def _set_flops(cfg: Config, record: Record, token_flops: float, mean_tokens: float, loop: Any) -> None:
    """Sets the FLOPs of a mean step, and the model FLOPs utilization (MFU) on a GPU of known peak.

    token_flops: FLOPs a token of the ledger's step, over all ranks. That step is the largest, so scaling by tokens
    neglects the quadratic part of attention. The utilization is that of the measured steps together: where lengths
    differ, a mean step's FLOPs in a median step's time would be too many.
    """
    speed = record.speed
    speed.model_flops_per_step = round(token_flops * mean_tokens)
    if loop.accelerator.device.type != "cuda":
        return  # without reading the figures of all GPUs, a twelfth of the time of a small job
    gpus = max(cfg.parallelism.num_processes or 1, cfg.parallelism.replicas)  # with dp one process runs all replicas
    peak_flops = gpu_specs.peak_flops(record.environment["device_name"], cfg.precision.kind)
    if peak_flops and speed.tokens_per_second:
        speed.mfu = token_flops * speed.tokens_per_second / (peak_flops * gpus)


def take_largest(memory: Memory) -> None:
    """Sets the record's figures to those of the rank with the highest peak, and `all_ranks_bytes` to the sums."""

    def peak_bytes(rank: dict[str, Any]) -> int:
        return rank["peak_allocated_bytes"] or rank["peak_tensor_bytes"] or 0

    largest = max(memory.per_rank, key=peak_bytes)
    for key, value in largest.items():
        if key == "rank":
            continue
        setattr(memory, key, value)
        if key.endswith("_bytes") and isinstance(value, int):
            memory.all_ranks_bytes[key] = sum(rank[key] or 0 for rank in memory.per_rank)
