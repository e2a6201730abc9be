"""parallelism=zero: when it is refused."""

from __future__ import annotations

from recipes.machine import host


def problems(cfg, on_gpu: bool) -> list[str]:
    """What ZeRO needs, and what would mean something else under it. Asked for parallelism=zero."""
    own, found = cfg.parallelism, []
    if not host.has("deepspeed"):
        found.append("parallelism=zero needs the package deepspeed: pip install deepspeed, or choose parallelism=fsdp.")
    if own.offload == "all" and own.stage != 3:
        found.append(
            f"parallelism.offload=all moves weights that only stage 3 shares out, not stage {own.stage}. "
            "Type parallelism.stage=3, or parallelism.offload=optimizer."
        )
    if own.offload != "none" and not on_gpu:
        found.append("parallelism.offload moves states from a GPU to the host; there is no GPU here. Leave it out.")
    if "8bit" in cfg.optim.transformers_name or cfg.optim.name == "adafactor":
        why = "its rows and columns are" if cfg.optim.name == "adafactor" else "its embeddings in 32 bits are"
        found.append(
            f"optim={cfg.optim.name} would see flat pieces of many weights under parallelism=zero, in which "
            f"{why} lost. Choose optim=adamw, or parallelism=ddp."
        )
    if cfg.precision.name == "fp16":
        found.append(
            "precision=fp16: DeepSpeed clips gradients before it takes the loss scale out of them, and never "
            "lowers the scale under autocast. Choose precision=bf16, or parallelism=fsdp."
        )
    if cfg.precision.name == "bf16_pure":
        found.append(
            "precision=bf16_pure: DeepSpeed keeps fp32 copies of the weights beside those in bf16. "
            "Choose precision=bf16, or parallelism=fsdp."
        )
    if cfg.eval.precision:
        found.append("eval.precision casts the whole model, which parallelism=zero keeps in flat pieces. Leave it out.")
    if cfg.save.every_steps or cfg.resume:
        found.append(
            "save.every_steps and resume: checkpoints of parallelism=zero are not written, since what "
            "DeepSpeed writes must be unpickled. Leave them out, or choose parallelism=fsdp."
        )
    return found


def warnings(cfg) -> list[str]:
    """What is not done, and what the ledger cannot tell. Asked for parallelism=zero."""
    found = []
    if cfg.save.on_signal:
        found.append("parallelism=zero saves no checkpoint when a signal ends it: the run cannot be resumed.")
    if cfg.measure.ledger:
        found.append(
            "parallelism=zero: of the gradients the ledger sees the pieces that the optimizer finds; what "
            "they are reduced from, and DeepSpeed's buffers, are in 'other'."
        )
    return found
