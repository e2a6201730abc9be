"""parallelism=zero on the fake device: what DeepSpeed's engine allocates, computes and sends, in its order.

An estimate does not need DeepSpeed. Where it is installed, a test compares the memory ledgers of both
(tests/foresight/test_ledger_zero.py).
"""

import contextlib
from typing import Any

import torch

from legroom.config import Config
from legroom.foresight.zero.flat import FlatRank
from legroom.foresight.zero.offload import OffloadedRank
from legroom.foresight.zero.shards import ShardedRank


class ZeroModel(torch.nn.Module):
    """The model in DeepSpeed's engine; in the place of DDP."""

    def __init__(self, module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, **settings: Any):
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def no_sync(self) -> contextlib.AbstractContextManager:
        """The engine looks at `accelerator.sync_gradients` itself."""
        return contextlib.nullcontext()


def attach(cfg: Config, loop: Any) -> list[str]:
    """Let the loop's step be that of DeepSpeed's engine. Returns what is assumed, for the record."""
    own = cfg.parallelism
    engine = (ShardedRank if own.fetches_ahead else FlatRank if own.offload == "none" else OffloadedRank)(cfg, loop)
    loop.accelerator.backward = engine.backward
    loop.accelerator.clip_grad_norm_ = lambda *_: None
    engine.optimizer.step = engine.step
    return [f"rank {engine.rank} of {own.world_size} is estimated, which holds most."] if engine.rank else []
