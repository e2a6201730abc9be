"""train: the plain settings of training that need a word of meaning."""

from __future__ import annotations

PRETRAINED_LEARNING_RATE = 5e-5  # the default of transformers' TrainingArguments, made for fine-tuning


def resolve(cfg) -> list[str]:
    """Fill in the learning rate: the model's own from scratch, a smaller one for trained weights."""
    if cfg.train.learning_rate is None:
        cfg.train.learning_rate = PRETRAINED_LEARNING_RATE if cfg.model.pretrained else cfg.model.learning_rate
    return []


def problems(cfg) -> list[str]:
    """Settings that would be ignored."""
    if cfg.train.schedule == "constant" and cfg.train.warmup_steps:
        return [
            "train.schedule=constant has no warm-up, so train.warmup_steps would be ignored. "
            "Choose train.schedule=constant_with_warmup."
        ]
    return []


def given_problems(cfg, given: set[str]) -> list[str]:
    """Two keys that say the same thing differently."""
    if cfg.train.max_steps is not None and "train.epochs" in given:
        return ["train.max_steps decides how long to train, so train.epochs would be ignored. Leave one of them out."]
    return []


def arguments(cfg) -> dict:
    """Entries for TrainingArguments."""
    train = cfg.train
    return {
        "per_device_train_batch_size": cfg.batch.per_device,
        "max_steps": train.max_steps if train.max_steps is not None else -1,
        "num_train_epochs": train.epochs,
        "learning_rate": train.learning_rate,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "lr_scheduler_type": train.schedule,
        "warmup_steps": train.warmup_steps,
        "seed": train.seed,
        "data_seed": train.seed,
    }
