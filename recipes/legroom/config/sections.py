"""The schema of the sections: the plain keys of conf/config.yaml."""

from dataclasses import dataclass

from legroom.config.fields import LABEL, LENGTH, RUN, TRAINING, UNSET, at_least, fraction, key, one_of


@dataclass
class Batch:
    per_device: int = at_least(1)
    effective: int | None = at_least(1)


@dataclass
class Train:
    max_steps: int | None = at_least(1, identity=(RUN, LENGTH, LABEL))
    epochs: int = at_least(1, identity=(RUN, LENGTH, LABEL))
    learning_rate: float | None = at_least(0)
    weight_decay: float = at_least(0)
    max_grad_norm: float = at_least(0)
    schedule: str | None = one_of("linear", "cosine", "constant", "constant_with_warmup", "polynomial", "wsd", None)
    warmup_steps: int = at_least(0)
    decay_steps: int | None = key(minimum=1, recorded="if set")
    floor: float | None = key(minimum=0, below=1, recorded="if set")
    ema: float | None = key(minimum=0, below=1, recorded="if set")
    seed: int = key(identity=(RUN, TRAINING), minimum=0, below=2**32)  # NumPy's bound
    log_seconds: float = at_least(0, identity=(RUN,))
    on_nan: str = one_of("stop", "continue", identity=(RUN,))


@dataclass
class Eval:
    enabled: bool = UNSET
    batch: int = at_least(1)
    precision: str | None = one_of("fp16", "bf16", None)
    window: int | None = at_least(2)
    stride: int | None = at_least(1)
    max_samples: int | None = at_least(1)
    every_steps: int | None = at_least(1)
    patience: int | None = key(minimum=1, recorded="if set")
    metric: str | None = key(choices=("loss", "accuracy", "f1", "exact_match", "pearson", None), recorded="if set")
    generate: int | None = key(minimum=0, recorded="if set")


@dataclass
class Save:
    final: bool | None = key(identity=(RUN, LABEL))
    merge: bool = key(identity=(RUN, LABEL))
    max_shard_gb: float | None = at_least(1e-6)
    every_steps: int | None = at_least(1)
    keep: int = at_least(1)
    best: bool = UNSET
    on_signal: bool = UNSET


@dataclass
class Measure:
    warmup_steps: int = at_least(0)
    ledger: bool = UNSET
    operations: bool = key(identity=(RUN,))
    repeats: int = at_least(1, identity=())
    repeat: int = at_least(0, identity=(RUN,))


@dataclass
class Launch:
    timeout_seconds: float | None = at_least(0)
    memory_limit_gib: float | None = at_least(0, identity=(RUN, LABEL))
    oversubscribe: bool = UNSET
    preempted_exit_code: int = key(minimum=0, below=256)


@dataclass
class Estimate:
    explain: bool = UNSET
    margin: float = fraction()
    hint_seconds: float = at_least(0, identity=())
    short_run: str | None = key(identity=(RUN,))
