"""train: length, learning rate and schedule of a training."""

from collections.abc import Collection
from typing import Any

from legroom.config import Config
from legroom.options import hooks

PRETRAINED_LEARNING_RATE = 5e-5  # the default of transformers' TrainingArguments, made for fine-tuning

POLYNOMIAL_END = 1e-7  # the last learning rate of transformers' polynomial schedule


def default_learning_rate(cfg: Config) -> float | None:
    """That of the adapter; without one a small rate for pretrained weights, that of the model for random ones."""
    if cfg.adapter.is_used:
        return cfg.adapter.learning_rate
    if cfg.model.pretrained:
        return PRETRAINED_LEARNING_RATE
    return cfg.model.learning_rate


def lower_rate(cfg: Config) -> float:
    """The learning rate to try after a training that diverged: the default where the rate is far above it, or else a
    tenth."""
    rate = cfg.train.learning_rate or 0.0
    default = default_learning_rate(cfg)
    if default and rate > 10 * default:
        return default
    return rate / 10


def lower_rate_hint(cfg: Config) -> str | None:
    """What to type after a training that diverged; None where its rate is 0, so that it is not to blame."""
    if not cfg.train.learning_rate:
        return None
    return f"Lower the learning rate, {cfg.train.learning_rate:g}: type train.learning_rate={lower_rate(cfg):g}."


def resolve(cfg: Config) -> list[str]:
    """Fills in the learning rate and the schedule."""
    if cfg.train.schedule is None and cfg.optim.facts.needs_constant_schedule:
        cfg.train.schedule = "constant"
    elif cfg.train.schedule is None:
        cfg.train.schedule = "linear"
    if cfg.train.learning_rate is None:
        cfg.train.learning_rate = default_learning_rate(cfg)
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Settings that would be ignored."""
    lines = _schedule_problems(cfg)
    rate = cfg.train.learning_rate
    for section in ("adapter", "model") if cfg.adapter.is_used else ("model",):
        key = f"{section}.learning_rate"
        # A resumed training keeps the rate that it began with.
        if key in given and getattr(cfg, section).learning_rate != rate and not cfg.resume:
            lines.append(
                f"{key} would be ignored: the training's rate is {rate:g}. Leave it out, or type "
                "train.learning_rate alone."
            )
    if cfg.train.max_steps is not None and "train.epochs" in given:
        lines.append(
            "train.max_steps decides how long to train, so train.epochs would be ignored. Leave one of them out."
        )
    return lines


def _schedule_problems(cfg: Config) -> list[str]:
    """A schedule that the optimizer replaces, without the warm-up that is asked for, or without room to fall."""
    lines = []
    if cfg.optim.facts.needs_constant_schedule:
        if cfg.train.schedule != "constant":
            lines.append(
                f"optim={cfg.optim.name} takes the place of a schedule, and train.schedule={cfg.train.schedule} is "
                "one. Leave it out; train.warmup_steps is the optimizer's own warm-up."
            )
    elif cfg.train.schedule == "constant" and cfg.train.warmup_steps:
        lines.append(
            "train.schedule=constant has no warm-up, so train.warmup_steps would be ignored. "
            "Choose train.schedule=constant_with_warmup."
        )
    rate = cfg.train.learning_rate
    if cfg.train.schedule == "polynomial" and rate is not None and rate <= POLYNOMIAL_END:
        lines.append(
            f"train.learning_rate={cfg.train.learning_rate} is not above {POLYNOMIAL_END}, to which "
            "train.schedule=polynomial falls. Choose train.schedule=linear."
        )
    return lines


def warmup_warnings(cfg: Config, steps: int) -> list[str]:
    """A warm-up that the training does not see the end of. steps: of the whole training."""
    warmup = cfg.train.warmup_steps
    if warmup < steps:
        return []
    return [
        f"train.warmup_steps={warmup:,} is not below the {steps:,} steps of this training: the learning rate never "
        f"reaches train.learning_rate={cfg.train.learning_rate}."
    ]


def training_arguments(cfg: Config) -> dict[str, Any]:
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


hooks.register_module("train", globals())
