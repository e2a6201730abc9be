"""recipe=estimate and estimate.*: when they are refused."""

from __future__ import annotations

from collections.abc import Collection

from recipes.config import Config
from recipes.options import hooks

# Modes of parallelism that it does not know, and what to type instead.
UNSUPPORTED_MODES = {
    "dp": "its copies come and go in threads. Type parallelism=ddp, or parallelism=single for what it is on one GPU.",
    "zero": "its kernels are DeepSpeed's own. Type parallelism=fsdp with the same parallelism.num_processes, which shares "
    "out the same: strategy=full_shard is near stage 3, strategy=shard_grad_op near stage 2.",
}


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Modes of parallelism that an estimate does not support, and keys that only an estimate reads."""
    name = cfg.parallelism.name
    if cfg.recipe.name == "estimate":
        unsupported = UNSUPPORTED_MODES.get(name)
        return [f"recipe=estimate does not support parallelism={name}: {unsupported}"] if unsupported else []
    if "estimate.explain" in given:
        return ["estimate.explain belongs to recipe=estimate. Leave it out, or add recipe=estimate."]
    return []


HOOKS = hooks.register("estimate", hooks.Hooks(problems=problems))
