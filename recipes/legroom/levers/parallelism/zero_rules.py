"""parallelism=zero: when it is refused."""

from legroom.config import Config


def problems(cfg: Config) -> list[str]:
    """Options that ZeRO does not support, or under which they would mean something else. For parallelism=zero alone."""
    own, found = cfg.parallelism, []
    if own.offload == "all" and own.stage != 3:
        found.append(
            f"parallelism.offload=all moves weights that only stage 3 shards, not stage {own.stage}. "
            "Type parallelism.stage=3, or parallelism.offload=optimizer."
        )
    if own.offload != "none" and not cfg.target.on_gpu and not cfg.predicts:
        found.append("parallelism.offload moves states from a GPU to the host; there is no GPU here. Leave it out.")
    facts = cfg.optim.facts
    if facts.needs_whole_weights or facts.needs_rows or facts.needs_shapes:
        instead = "ddp" if facts.needs_whole_weights else "fsdp"
        found.append(
            f"optim={cfg.optim.name} works on one weight at a time, and parallelism=zero gives it flat pieces of many. "
            f"Choose optim=adamw, or parallelism={instead}."
        )
    if facts.needs_own_weights:
        found.append(
            f"optim={cfg.optim.name} changes the weights before an evaluation, and parallelism=zero keeps them in flat "
            "pieces. Choose optim=adamw, or parallelism=ddp."
        )
    if cfg.precision.kind == "fp16":
        found.append(
            "precision=fp16: DeepSpeed clips gradients before it takes the loss scale out of them, and never "
            "lowers the scale under autocast. Choose precision=bf16, or parallelism=fsdp."
        )
    types = cfg.precision
    if types.kind == "bf16" and cfg.adapter.is_used and {types.base, types.weights, types.adapter} != {"bf16"}:
        found.append(
            "parallelism=zero keeps a base and an adapter in bf16 with precision=bf16, and fp32 copies of what is "
            "trained. Leave precision.base, precision.weights and precision.adapter out."
        )
    if cfg.precision.kind == "bf16_pure":
        found.append(
            "precision=bf16_pure: DeepSpeed keeps fp32 copies of the weights beside those in bf16. "
            "Choose precision=bf16, or parallelism=fsdp."
        )
    if cfg.eval.precision:
        found.append("eval.precision casts the whole model, which parallelism=zero keeps in flat pieces. Leave it out.")
    if cfg.save.every_steps or cfg.save.best or cfg.resume:
        found.append(
            "save.every_steps, save.best and resume: checkpoints of parallelism=zero are not written, since what "
            "DeepSpeed writes must be unpickled. Leave them out, or choose parallelism=fsdp."
        )
    return found


def warnings(cfg: Config) -> list[str]:
    """What is not saved, what the memory ledger cannot see, what an estimate assumes. For parallelism=zero alone."""
    found = []
    if cfg.predicts:
        overlaps = "computation, as fsdp's does" if cfg.parallelism.fetches_ahead else "nothing"
        return [f"parallelism=zero: DeepSpeed 0.19's step is assumed; what its ranks send overlaps with {overlaps}."]
    if cfg.save.on_signal:
        found.append("parallelism=zero saves no checkpoint when a signal ends it: the run cannot be resumed.")
    if cfg.measure.ledger:
        found.append(
            "parallelism=zero: of the gradients, the ledger counts only the shards that the optimizer uses; the whole "
            "gradients and DeepSpeed's buffers are in 'other'."
        )
    return found
