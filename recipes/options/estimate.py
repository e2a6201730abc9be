"""recipe=estimate and estimate.*: when they are refused."""

from __future__ import annotations

# Modes of parallelism that it does not know, and what to type instead.
UNSUPPORTED_MODES = {
    "dp": "its copies come and go in threads. Type parallelism=ddp, or parallelism=single for what it is on one GPU.",
    "zero": "its kernels are DeepSpeed's own. Type parallelism=fsdp with the same parallelism.num_processes, which shares "
    "out the same: strategy=full_shard is near stage 3, strategy=shard_grad_op near stage 2.",
}


def problems(cfg) -> list[str]:
    """What an estimate does not know."""
    if cfg.recipe.name != "estimate":
        return []
    name = cfg.parallelism.name
    return (
        [f"recipe=estimate does not know parallelism={name}: {UNSUPPORTED_MODES[name]}"]
        if name in UNSUPPORTED_MODES
        else []
    )


def given_problems(cfg, given: set[str]) -> list[str]:
    """Keys that only an estimate reads."""
    if "estimate.explain" in given and cfg.recipe.name != "estimate":
        return ["estimate.explain belongs to recipe=estimate. Leave it out, or add recipe=estimate."]
    return []
