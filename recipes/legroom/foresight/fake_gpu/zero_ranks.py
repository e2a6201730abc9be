"""parallelism=zero on the fake device: what DeepSpeed's engine allocates, computes and sends, in its order.

An estimate does not need DeepSpeed. Where it is installed, a test compares the memory ledgers of both
(tests/foresight/test_ledger_zero.py).
"""

import contextlib
from typing import Any

import torch

from legroom.config import Config
from legroom.foresight.fake_gpu.zero_flat import FlatRank
from legroom.foresight.fake_gpu.zero_offload import OffloadedRank
from legroom.foresight.fake_gpu.zero_shards import ShardedRank
from legroom.parallelism.unwrap import inner_optimizer


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
    optimizer, model = inner_optimizer(loop.optimizer), loop.bare_model
    width, rank = model.config.hidden_size, 0
    if cfg.parallelism.fetches_ahead:  # Accelerate's values for 'auto'
        engine = ShardedRank(cfg, model, optimizer, width**2, int(0.9 * width**2), 10 * width)
    else:
        engine = (FlatRank if cfg.parallelism.offload == "none" else OffloadedRank)(
            cfg, loop.accelerator, optimizer, width**2
        )
        rank = engine.rank
    loop.accelerator.backward = engine.backward
    loop.accelerator.clip_grad_norm_ = lambda *_: None
    optimizer.step = engine.step
    return [f"rank {rank} of {cfg.parallelism.world_size} is estimated, which holds most."] if rank else []
