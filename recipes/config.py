"""The schema: one dataclass a group, and what may stand in each key.

The menus in `conf/` hold the values. A key that an option's YAML does not name stays missing, and
giving it a value is refused: nothing a person types is ignored in silence.

Imports nothing heavy: the parent process and the worker both read it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Optional

MISSING = "???"  # OmegaConf's own word for 'no value given'
UNSET: Any = MISSING


def one_of(*choices: Any, default: Any = UNSET) -> Any:
    """A key that takes one of a few words."""
    return field(default=default, metadata={"choices": choices})


def at_least(minimum: float, default: Any = UNSET) -> Any:
    """A number with a smallest sensible value."""
    return field(default=default, metadata={"minimum": minimum})


def fraction(default: Any = UNSET) -> Any:
    """A number from 0 up to, and without, 1."""
    return field(default=default, metadata={"minimum": 0, "below": 1})


# --- the menus: a folder of conf/ each --------------------------------------------------------


@dataclass
class Recipe:
    name: str = UNSET


@dataclass
class Model:
    name: str = UNSET
    family: str = one_of("bert", "gpt2", "llama", "mixtral")
    layers: int = at_least(1)
    width: int = at_least(1)
    heads: int = at_least(1)
    kv_heads: int = at_least(1)
    feed_forward: int = at_least(1)
    experts: int = at_least(1)
    experts_per_token: int = at_least(1)
    vocab: int = at_least(2)
    positions: int = at_least(1)
    classes: int = at_least(1)
    tied: bool = UNSET
    dropout: float = fraction()
    attention: str = one_of("sdpa", "eager", "flash_attention_2")
    pretrained: Optional[str] = UNSET
    learning_rate: float = at_least(0)


@dataclass
class Data:
    name: str = UNSET
    samples: Optional[int] = at_least(1)
    seq_len: int = at_least(2)
    eval_samples: Optional[int] = at_least(1)
    eval_fraction: float = fraction()
    eval_path: Optional[str] = UNSET
    path: Optional[str] = UNSET
    task: Optional[str] = one_of("classification", "language_modelling", None)
    text_column: str = UNSET
    label_column: str = UNSET
    tokenizer: str = UNSET
    pad_to_multiple_of: int = at_least(1)
    pin_memory: bool = UNSET
    workers: int = at_least(0)


@dataclass
class Precision:
    name: str = UNSET


@dataclass
class Optim:
    name: str = UNSET
    transformers_name: str = UNSET
    beta1: float = fraction()
    beta2: float = fraction()
    epsilon: float = at_least(0)
    momentum: float = fraction()


@dataclass
class Accumulation:
    name: str = UNSET
    steps: int = at_least(1)
    reason: Optional[str] = UNSET  # why auto chose what it did; derived


@dataclass
class Checkpointing:
    name: str = UNSET


@dataclass
class Parallelism:
    name: str = UNSET
    num_processes: Optional[int] = at_least(1)
    replicas: int = UNSET  # micro-batches trained on at a time; derived
    gradient_as_bucket_view: bool = UNSET
    bucket_cap_mb: int = at_least(1)
    find_unused_parameters: bool = UNSET
    static_graph: bool = UNSET
    nccl_p2p: bool = UNSET
    strategy: str = one_of("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
    shard_size: Optional[int] = at_least(1)
    tensor_size: int = at_least(2)
    wrap: str = one_of("layer", "size", "none")
    wrap_min_parameters: int = at_least(1)
    cpu_offload: bool = UNSET
    stage: int = one_of(1, 2, 3)
    offload: str = one_of("none", "optimizer", "all")
    live_parameters: int = at_least(1)


@dataclass
class Tracker:
    name: str = UNSET
    project: str = UNSET
    entity: Optional[str] = UNSET
    mode: Optional[str] = UNSET
    finish_seconds: float = at_least(1)


@dataclass
class Gpu:
    """A GPU to predict for. Peaks are dense; one that the hardware lacks is null."""

    name: str = UNSET
    chip: str = UNSET
    device_name: str = UNSET
    memory_bytes: int = at_least(1)
    capability: str = UNSET
    fp32_tflops: Optional[float] = at_least(0)
    tf32_tflops: Optional[float] = at_least(0)
    fp16_tflops: Optional[float] = at_least(0)
    bf16_tflops: Optional[float] = at_least(0)
    bandwidth_gb_per_second: float = at_least(1)
    sm_count: int = at_least(1)
    link: str = one_of("nvlink", "pcie", "xgmi")
    link_gb_per_second: float = at_least(1)
    context_bytes: int = at_least(0)
    context_from: str = one_of("measured", "assumed")


# --- the sections: plain keys of conf/config.yaml ---------------------------------------------


@dataclass
class Batch:
    per_device: int = at_least(1)
    effective: Optional[int] = at_least(1)


@dataclass
class Train:
    max_steps: Optional[int] = at_least(1)
    epochs: int = at_least(1)
    learning_rate: Optional[float] = at_least(0)
    weight_decay: float = at_least(0)
    max_grad_norm: float = at_least(0)
    schedule: str = one_of("linear", "cosine", "constant", "constant_with_warmup", "polynomial")
    warmup_steps: int = at_least(0)
    seed: int = field(default=UNSET, metadata={"minimum": 0, "below": 2**32})  # what NumPy takes
    log_seconds: float = at_least(0)


@dataclass
class Eval:
    enabled: bool = UNSET
    batch: int = at_least(1)
    precision: Optional[str] = one_of("fp16", "bf16", None)
    window: Optional[int] = at_least(2)
    stride: Optional[int] = at_least(1)


@dataclass
class Save:
    final: bool = UNSET
    every_steps: Optional[int] = at_least(1)
    keep: int = at_least(1)
    on_signal: bool = UNSET


@dataclass
class Measure:
    warmup_steps: int = at_least(0)
    ledger: bool = UNSET
    repeats: int = at_least(1)
    repeat: int = at_least(0)


@dataclass
class Launch:
    timeout_seconds: Optional[float] = at_least(0)
    memory_limit_gib: Optional[float] = at_least(0)


@dataclass
class Estimate:
    explain: bool = UNSET


@dataclass
class Config:
    """The whole of one job. Groups first, in the order in which a person reads them."""

    recipe: Recipe = field(default_factory=Recipe)
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    precision: Precision = field(default_factory=Precision)
    optim: Optim = field(default_factory=Optim)
    accumulation: Accumulation = field(default_factory=Accumulation)
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    parallelism: Parallelism = field(default_factory=Parallelism)
    tracker: Tracker = field(default_factory=Tracker)
    gpu: Gpu = field(default_factory=Gpu)
    batch: Batch = field(default_factory=Batch)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    save: Save = field(default_factory=Save)
    measure: Measure = field(default_factory=Measure)
    launch: Launch = field(default_factory=Launch)
    estimate: Estimate = field(default_factory=Estimate)
    resume: Optional[str] = UNSET
    compile: bool = UNSET
    device: str = one_of("auto", "cpu", "cuda")


def node_types(cls: type = Config) -> dict[str, Any]:
    """Key -> type of a schema class, with `Optional[T]` as T."""

    def bare(kind):
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            return next(k for k in typing.get_args(kind) if k is not type(None))
        return kind

    hints = typing.get_type_hints(cls)
    return {f.name: bare(hints[f.name]) for f in dataclasses.fields(cls)}


GROUPS = [name for name, kind in node_types().items() if dataclasses.is_dataclass(kind) and "name" in node_types(kind)]
ESTIMATE_ONLY = ["gpu", "estimate"]  # menus and sections that mean nothing to a run: only recipe=estimate reads them


def from_dict(values: dict, cls: type = Config):
    """A plain dictionary (what Hydra composed, or a record's `config`) as the typed tree.

    Keys without a value become None, so that code reads `cfg.data.path` whatever the option.
    """
    kinds = node_types(cls)
    return cls(
        **{
            name: from_dict(values.get(name) or {}, kind)
            if dataclasses.is_dataclass(kind)
            else (None if values.get(name, MISSING) == MISSING else values[name])
            for name, kind in kinds.items()
        }
    )


def to_dict(cfg: Config) -> dict:
    """The typed tree as a dictionary for the record: None where a key is unused or unset."""
    return dataclasses.asdict(cfg)
