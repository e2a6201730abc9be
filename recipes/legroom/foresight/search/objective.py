"""What the advice and `fit` look for, in this order:

1. the same mathematics: rounding and the random numbers of dropout may differ, and nothing else;
2. the fewest GPUs;
3. where the mathematics has to change, the smallest change (`hooks.Cost`: products in 16 bits, states in 8 bits, no
   clipping, weights in 16 bits), and an adapter where that is not enough;
4. the fastest step; times within a twentieth count as equal: in the guide's fp32 steps of one machine, which were
   published (docs/results/published.md), ratios of two were up to 4.9 % from the predicted;
5. the simplest: the fewest levers that are not as they were.

Rows and the effective batch stay as they are. In one search of `fit` everything computes the same, but for what
`fit.allow` lets it change, on one number of GPUs: it orders by 4 and 5. The advice goes through 1 to 3, and for
each asks `fit`'s own search for the rest.
"""

import itertools
import math

from legroom.config import Config
from legroom.options import hooks
from legroom.options.hooks import Cost, Lever

ALIKE = 0.05  # of a step's time


def order(seconds: float, changes: int) -> tuple[float, int, float]:
    """What configurations of the same mathematics on as many GPUs are sorted by."""
    size = round(math.log(seconds) / math.log1p(ALIKE)) if 0 < seconds < math.inf else seconds
    return size, changes, seconds


def changed_mathematics(cfg: Config) -> list[tuple[Lever, ...]]:
    """Sets of levers that change what is computed, the smallest change first; no adapter among them."""
    of_keys: dict[str, list[tuple[Lever, ...]]] = {}
    for lever in hooks.memory_levers(cfg):
        if lever.cost is not None and Cost.HOST_COPIES < lever.cost < Cost.OTHER_WEIGHTS:
            of_keys.setdefault(lever.overrides.partition("=")[0], [()]).append((lever,))
    sets = [tuple(itertools.chain(*chosen)) for chosen in itertools.product(*of_keys.values())]
    return sorted(filter(None, sets), key=lambda levers: (max(lever.cost or 0 for lever in levers), len(levers)))


def adapters(cfg: Config) -> list[tuple[Lever, ...]]:
    """Sets with small matrices that are trained beside the weights, the smallest change first."""
    if cfg.adapter.kind != "none":
        return []
    products = [lever for lever in hooks.memory_levers(cfg) if lever.cost is Cost.LOW_PRECISION_PRODUCTS]
    kinds = [Lever(f"adapter={name}", Cost.OTHER_WEIGHTS) for name in ("lora", "qlora")]
    return list(dict.fromkeys((kind, *more) for more in ([], products[:1]) for kind in kinds))
