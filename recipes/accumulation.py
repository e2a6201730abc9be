"""accumulation: forward and backward passes in one optimizer step."""

from __future__ import annotations


def resolve(cfg) -> list[str]:
    """Derive the steps from `batch.effective`, where that is given."""
    if cfg.batch.effective is None:
        return []
    if cfg.accumulation.name != "none":
        return [f"batch.effective={cfg.batch.effective} derives the accumulation, and accumulation="
                f"{cfg.accumulation.name} sets it too. Leave one of them out."]
    if cfg.batch.effective % cfg.batch.per_device:
        return [f"batch.effective={cfg.batch.effective} is not a multiple of batch.per_device="
                f"{cfg.batch.per_device}. Change one of them."]
    if cfg.accumulation.steps != 1:
        return [f"batch.effective={cfg.batch.effective} derives the accumulation, and accumulation.steps="
                f"{cfg.accumulation.steps} sets it too. Leave one of them out."]
    cfg.accumulation.steps = cfg.batch.effective // cfg.batch.per_device
    return []


def arguments(cfg) -> dict:
    """Entries for TrainingArguments."""
    return {"gradient_accumulation_steps": cfg.accumulation.steps}
