"""accumulation: forward and backward passes in one optimizer step."""

from __future__ import annotations

from recipes import parallelism


def resolve(cfg) -> list[str]:
    """Derive the steps from `batch.effective`, where that is given."""
    if cfg.batch.effective is None:
        return []
    if cfg.accumulation.name != "none":
        return [f"batch.effective={cfg.batch.effective} derives the accumulation, and accumulation="
                f"{cfg.accumulation.name} sets it too. Leave one of them out."]
    at_once = cfg.batch.per_device * parallelism.replicas(cfg)
    if cfg.batch.effective % at_once:
        devices = f" x {at_once // cfg.batch.per_device} devices" if at_once > cfg.batch.per_device else ""
        return [f"batch.effective={cfg.batch.effective} is not a multiple of batch.per_device={cfg.batch.per_device}"
                f"{devices}. Change one of them."]
    if cfg.accumulation.steps != 1:
        return [f"batch.effective={cfg.batch.effective} derives the accumulation, and accumulation.steps="
                f"{cfg.accumulation.steps} sets it too. Leave one of them out."]
    cfg.accumulation.steps = cfg.batch.effective // at_once
    return []


def arguments(cfg) -> dict:
    """Entries for TrainingArguments."""
    return {"gradient_accumulation_steps": cfg.accumulation.steps}
