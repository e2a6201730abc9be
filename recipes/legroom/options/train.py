"""train: length, learning rate and schedule of a training."""

from collections.abc import Collection
from typing import Any

from legroom.config import Config
from legroom.options import hooks
from legroom.records import checkpoint_values

# Between those of GPT-3's sizes of 125 M and 6.7 B parameters (Brown et al. 2020, arXiv 2005.14165, table 2.1).
FROM_SCRATCH_LEARNING_RATE = 3e-4
PRETRAINED_LEARNING_RATE = 5e-5  # the default of transformers' TrainingArguments, made for fine-tuning

FALL_TO_A_FLOOR = ("cosine", "wsd")  # schedules
WSD_DECAY = 10  # with train.decay_steps=null the rate falls in the last of so many parts of the training
POLYNOMIAL_END = 1e-7  # the last learning rate of transformers' polynomial schedule


def default_learning_rate(cfg: Config) -> float | None:
    """That of the adapter; without one a small rate for pretrained weights, that of the model for random ones, whose
    size is not known where a config.json has it."""
    if cfg.adapter.is_used:
        return cfg.adapter.learning_rate
    if cfg.model.weights == "random":
        return FROM_SCRATCH_LEARNING_RATE
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
    lines = _schedule_problems(cfg) + _fall_problems(cfg)
    rate = cfg.train.learning_rate
    if rate is not None and rate > checkpoint_values.LARGEST:
        lines.append(
            f"train.learning_rate={rate:g} is larger than any that a checkpoint holds "
            f"({checkpoint_values.LARGEST:.0e}), and no training survives it. Type one near 1e-3."
        )
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


def _fall_problems(cfg: Config) -> list[str]:
    """`train.floor` and `train.decay_steps` with a schedule that does not read them, or in too short a training."""
    lines = []
    if cfg.train.floor is not None and cfg.train.schedule not in FALL_TO_A_FLOOR:
        lines.append(
            f"train.floor is not used by train.schedule={cfg.train.schedule}. Choose train.schedule=cosine or "
            "train.schedule=wsd, or leave it out."
        )
    if cfg.train.decay_steps is None:
        return lines
    if cfg.train.schedule != "wsd":
        lines.append(
            f"train.decay_steps is not used by train.schedule={cfg.train.schedule}. Choose train.schedule=wsd, or "
            "leave it out."
        )
    changing = cfg.train.warmup_steps + cfg.train.decay_steps
    if cfg.train.max_steps is not None and changing > cfg.train.max_steps:
        lines.append(
            f"train.warmup_steps and train.decay_steps are {changing} steps together, and train.max_steps="
            f"{cfg.train.max_steps}. Type a smaller train.decay_steps."
        )
    return lines


def schedule_warnings(cfg: Config, steps: int) -> list[str]:
    """A warm-up that the training does not see the end of, or a decay that is cut at its beginning. steps: of the whole
    training."""
    warmup = cfg.train.warmup_steps
    decay = cfg.train.decay_steps or 0
    if warmup >= steps:
        return [
            f"train.warmup_steps={warmup:,} is not below the {steps:,} steps of this training: the learning rate never "
            f"reaches train.learning_rate={cfg.train.learning_rate}."
        ]
    if warmup + decay > steps:
        return [
            f"train.warmup_steps and train.decay_steps are {warmup + decay:,} steps together, and this training has "
            f"{steps:,}: the decay begins below train.learning_rate={cfg.train.learning_rate}. Type a smaller "
            "train.decay_steps."
        ]
    return []


def schedule_name(cfg: Config) -> str:
    """transformers' name of the schedule."""
    if cfg.train.schedule == "wsd":
        return "warmup_stable_decay"
    if cfg.train.schedule == "cosine" and cfg.train.floor:
        return "cosine_with_min_lr"
    assert cfg.train.schedule is not None, "`resolve` fills it in"
    return cfg.train.schedule


def schedule_arguments(cfg: Config, steps: int) -> dict[str, Any]:
    """What transformers' schedule is given beside its warm-up and its length. steps: of the whole training."""
    floor = cfg.train.floor or 0.0
    if cfg.train.schedule == "wsd":
        decay = cfg.train.decay_steps
        if decay is None:
            after_warmup = steps - cfg.train.warmup_steps
            decay = max(1, min(steps // WSD_DECAY, after_warmup))
        return {"num_decay_steps": decay, "decay_type": "linear", "min_lr_ratio": floor}
    return {"min_lr_rate": floor} if cfg.train.schedule == "cosine" and floor else {}


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
        "lr_scheduler_type": schedule_name(cfg),
        "warmup_steps": train.warmup_steps,
        "seed": train.seed,
        "data_seed": train.seed,
    }


hooks.register_module("train", globals())
