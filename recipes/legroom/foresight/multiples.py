"""Sizes of a model that the next multiple of 64 would make faster, by the model of tiles in `products`.

Matrix units work on whole tiles, so that a product with a side of 50,257 takes as long as one with 50,304, and in 16
bits longer, since rows of memory are then not aligned.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from legroom.config import Config
from legroom.estimator.speed import efficiencies, operation_names, roofline
from legroom.estimator.speed.operations import Operation, Tally

TILE = 64
LEAST = 0.01  # of the device's time: a smaller gain is not named


def notes(cfg: Config, tally: Tally) -> list[str]:
    """A line for each size of a model of the menu whose next multiple of 64 would make the step faster."""
    if cfg.model.pretrained or not tally.counts:
        return []
    found, total = [], sum(times * _seconds(cfg, operation) for operation, times in _operations(tally))
    others = {cfg.data.seq_len, (cfg.batch.per_device or 1) * (cfg.data.seq_len or 1)}
    for key, group in (("vocab", 1), ("width", cfg.model.heads or 1), ("feed_forward", 1)):
        size = getattr(cfg.model, key)
        if not size or not size % TILE or size in others:
            continue
        step = math.lcm(TILE, group)  # a head's width stays whole
        larger = -(-size // step) * step
        gain = _gain(cfg, tally, size, larger, total)
        if gain > LEAST * total:
            found.append(
                f"speed: model.{key}={larger}, the next multiple of {step}, would make the step about "
                f"{gain / total:.0%} faster than {size:,}, which leaves tiles of matrix units partly empty."
            )
    return found


def _gain(cfg: Config, tally: Tally, size: int, larger: int, total: float) -> float:
    """The seconds that the products with such a side gain, less what everything else would take longer at most."""
    gain = changed = 0.0
    for operation, times in _operations(tally):
        sides = {size: larger, 3 * size: 3 * larger}  # three: queries, keys and values in one product
        if operation.kind == operation_names.MATMUL and sides.keys() & set(operation.shape[1:]):
            shape = operation.shape[:1] + tuple(sides.get(side, side) for side in operation.shape[1:])
            grown = replace(operation, shape=shape, bytes=operation.bytes * larger // size)
            now = times * _seconds(cfg, operation)
            changed += now
            gain += now - times * _seconds(cfg, grown)
    return gain - (total - changed) * (larger / size - 1)


def _operations(tally: Tally) -> Iterator[tuple[Operation, float]]:
    """The operations of the device, without the exchanges between ranks, and how often each runs."""
    return ((one, times) for one, times in tally.operations() if one.kind != operation_names.COLLECTIVE)


def _seconds(cfg: Config, operation: Operation) -> float:
    return roofline.device_seconds(operation, cfg.gpu, cfg.precision.kind, efficiencies.of_gpu(cfg.gpu))
