"""The schema of a configuration: a dataclass for each menu and section, and the values that each key takes.

The menus in `conf/` hold the values. A key that an option's YAML does not name stays missing, and setting it is
refused: no typed key is ignored.
The metadata of a field is described in `recipes.schema_fields`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Optional

from recipes.schema_fields import (
    IDENTITY,
    LABEL,
    LENGTH,
    MISSING,
    RUN,
    TRAINING,
    UNSET,
    Menu,
    at_least,
    fraction,
    key,
    one_of,
    section,
)

# --- the menus: a folder of conf/ each --------------------------------------------------------


@dataclass
class Recipe(Menu):
    pass


@dataclass
class Model(Menu):
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
    learning_rate: float = at_least(0, identity=(RUN, TRAINING))


@dataclass
class Data(Menu):
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
    pin_memory: bool = key(identity=(RUN, LABEL))
    workers: int = at_least(0, identity=(RUN, LABEL))


@dataclass
class Precision(Menu):
    pass


@dataclass
class Optim(Menu):
    transformers_name: str = UNSET
    beta1: float = fraction()
    beta2: float = fraction()
    epsilon: float = at_least(0)
    momentum: float = fraction()
    # Further arguments of the optimizer: TrainingArguments.optim_args.
    args: Optional[dict[str, Any]] = field(default=UNSET, metadata={"recorded": "if set"})


@dataclass
class Accumulation(Menu):
    steps: int = at_least(1)
    reason: Optional[str] = UNSET  # why auto chose what it did; derived


@dataclass
class Checkpointing(Menu):
    pass


@dataclass
class Parallelism(Menu):
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
class Tracker(Menu):
    project: str = UNSET
    entity: Optional[str] = UNSET
    mode: Optional[str] = UNSET
    finish_seconds: float = at_least(1)


@dataclass
class Gpu(Menu):
    """A GPU to predict for. Peaks are dense; one that the hardware lacks is null."""

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
    max_steps: Optional[int] = at_least(1, identity=(RUN, LENGTH, LABEL))
    epochs: int = at_least(1, identity=(RUN, LENGTH, LABEL))
    learning_rate: Optional[float] = at_least(0)
    weight_decay: float = at_least(0)
    max_grad_norm: float = at_least(0)
    schedule: str = one_of("linear", "cosine", "constant", "constant_with_warmup", "polynomial")
    warmup_steps: int = at_least(0)
    seed: int = key(identity=(RUN, TRAINING), minimum=0, below=2**32)  # NumPy's bound
    log_seconds: float = at_least(0, identity=(RUN,))


@dataclass
class Eval:
    enabled: bool = UNSET
    batch: int = at_least(1)
    precision: Optional[str] = one_of("fp16", "bf16", None)
    window: Optional[int] = at_least(2)
    stride: Optional[int] = at_least(1)


@dataclass
class Save:
    final: bool = key(identity=(RUN, LABEL))
    every_steps: Optional[int] = at_least(1)
    keep: int = at_least(1)
    on_signal: bool = UNSET


@dataclass
class Measure:
    warmup_steps: int = at_least(0)
    ledger: bool = UNSET
    repeats: int = at_least(1, identity=())
    repeat: int = at_least(0, identity=(RUN,))


@dataclass
class Launch:
    timeout_seconds: Optional[float] = at_least(0)
    memory_limit_gib: Optional[float] = at_least(0, identity=(RUN, LABEL))


@dataclass
class Estimate:
    explain: bool = UNSET


@dataclass
class Config:
    """The configuration of one job: the menus, then the sections, then the plain keys."""

    recipe: Recipe = section(Recipe)
    model: Model = section(Model)
    data: Data = section(Data)
    precision: Precision = section(Precision)
    optim: Optim = section(Optim)
    accumulation: Accumulation = section(Accumulation, identity=(RUN, LABEL))
    checkpointing: Checkpointing = section(Checkpointing)
    parallelism: Parallelism = section(Parallelism, identity=(RUN, LABEL))
    tracker: Tracker = section(Tracker, identity=())
    gpu: Gpu = section(Gpu)
    batch: Batch = section(Batch, identity=(RUN, LABEL))
    train: Train = section(Train)
    eval: Eval = section(Eval, identity=(RUN, LABEL))
    save: Save = section(Save, identity=(LABEL,))
    measure: Measure = section(Measure, identity=(RUN, LABEL))
    launch: Launch = section(Launch, identity=())
    estimate: Estimate = section(Estimate)
    resume: Optional[str] = key(identity=(LABEL,))
    compile: bool = UNSET
    device: str = one_of("auto", "cpu", "cuda", identity=(RUN, LABEL))


def node_types(cls: type = Config) -> dict[str, Any]:
    """Key -> type of a class of the schema, with `Optional[T]` as T."""

    def bare(kind):
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            return next(k for k in typing.get_args(kind) if k is not type(None))
        return kind

    hints = typing.get_type_hints(cls)
    return {f.name: bare(hints[f.name]) for f in dataclasses.fields(cls)}


GROUPS = [name for name, kind in node_types().items() if dataclasses.is_dataclass(kind) and "name" in node_types(kind)]
ESTIMATE_ONLY = ["gpu", "estimate"]  # menus and sections that only recipe=estimate reads


@functools.cache
def identity_of(key: str) -> frozenset[str]:
    """What the value of a key identifies. key: as typed, 'train.seed', 'resume'; a menu's name stands for its option.

    A key that the schema does not have, as of an older record, has the identity of its section.
    """
    kinds, (section, _, leaf) = node_types(), key.partition(".")
    fields = {each.name: each.metadata for each in dataclasses.fields(Config)}
    inherited = fields.get(section, {}).get("identity", IDENTITY)
    if not leaf or not dataclasses.is_dataclass(kinds.get(section)):
        return frozenset(inherited)
    leaves = {each.name: each.metadata for each in dataclasses.fields(kinds[section])}
    return frozenset(leaves.get(leaf, {}).get("identity", inherited))


def from_dict(values: dict, cls: type = Config):
    """The typed tree of a plain dictionary: what Hydra composed, or the `config` of a record.

    Keys without a value become None, so that `cfg.data.path` can be read whatever the option.
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
    """The typed tree as a dictionary, for the record: None where a key has no value. Facts are left out."""

    def values_of(node: Any) -> dict:
        found = {}
        for each in dataclasses.fields(node):
            value, recorded = getattr(node, each.name), each.metadata.get("recorded", True)
            if recorded is True or (recorded == "if set" and value is not None):
                found[each.name] = values_of(value) if dataclasses.is_dataclass(value) else copy.deepcopy(value)
        return found

    return values_of(cfg)
