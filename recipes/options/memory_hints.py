"""What to change when memory runs out."""

from __future__ import annotations

from recipes.machine import host


def memory_hint(cfg, phase: str = "") -> str:
    """The levers against memory that this configuration has not pulled yet, the cheapest first.

    phase: where memory ran out. In the optimizer's step no activation is alive, so nothing that shrinks them helps.
    """
    gpu = host.gpu(cfg)
    newer = gpu is None or gpu.capability >= (8, 0)
    whole_weights = cfg.parallelism.name in ("single", "dp", "ddp")  # 8-bit optimizers work on no others
    levers, optim = [], []
    if cfg.optim.name in ("adamw", "adamw_fused") and whole_weights:
        optim.append("optim=adam8bit")
    if phase == "step":
        fused = cfg.optim.name == "adamw" and cfg.parallelism.name != "fsdp_tp"  # which it does not go with
        levers += ["optim=adamw_fused"] if fused else []  # no temporary of all weights
        levers += optim + (["precision=bf16_pure"] if newer and cfg.precision.name != "bf16_pure" else [])
    else:
        levers = _levers_of_the_passes(cfg, newer) + optim
        levers += [f"data.seq_len={cfg.data.seq_len // 2}"] if cfg.data.seq_len > 3 else []  # the least is 2
    if not levers:
        return "Every lever against it is pulled: choose a smaller model, or parallelism=fsdp over more GPUs."
    return "Try, the cheapest first: " + ", ".join(levers) + "."


def _levers_of_the_passes(cfg, newer: bool) -> list[str]:
    """What makes activations smaller. newer: the GPU knows bf16."""
    levers = []
    if cfg.precision.name in ("fp32", "tf32"):
        levers.append("precision=bf16" if newer else "precision=fp16")
    if cfg.batch.per_device > 1 and not cfg.parallelism.static_graph:  # which does not go with accumulation
        steps = cfg.accumulation.steps * 2
        key = f"accumulation=x{steps}" if steps in (2, 4, 8, 16) else f"accumulation.steps={steps}"
        levers.append(
            f"batch.per_device={cfg.batch.per_device // 2}"
            + ("" if cfg.batch.effective or cfg.batch.per_device % 2 else f" {key}")
        )
    if cfg.checkpointing.name == "none":
        levers.append("checkpointing=full")
    return levers
