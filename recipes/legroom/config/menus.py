"""The schema of the menus: a dataclass for each folder of conf/ (of gpu in gpu.py), with the values of each key."""

from dataclasses import dataclass, field
from typing import Any

from legroom.config.fields import LABEL, RUN, TRAINING, UNSET, Menu, at_least, fraction, key, kinds, one_of

# Bounds of what is built one by one, so that a wrong number would fill the host's memory before anything refuses it.
MOST_LAYERS = 2**11
MOST_PARTS = 2**16  # experts of a layer, classes, ranks


@dataclass
class Recipe(Menu):
    kind: str = kinds("trainer", "accelerate", "estimate")


@dataclass
class Model(Menu):
    """Its kind is its family."""

    family: str = one_of(
        "bert",
        "gpt2",
        "llama",
        "mixtral",
        "roberta",
        "distilbert",
        "modernbert",
        "mistral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "gemma2",
        "gemma3_text",
        "phi3",
        "deepseek_v2",
        "gpt_oss",
        "qwen3_5_text",
        "qwen3_5_moe_text",
        "glm4",
        "glm4_moe",
        "smollm3",
        "olmo2",
        "olmo3",
        "granite",
        "granitemoehybrid",
        "deepseek_v3",
        "ministral3",
        "seed_oss",
        "gemma",
        "starcoder2",
        "gpt_neox",
        "gemma4_text",
        "xlm-roberta",
    )
    layers: int = key(minimum=1, below=MOST_LAYERS + 1)
    width: int = at_least(1)
    heads: int = at_least(1)
    kv_heads: int = at_least(1)
    feed_forward: int = at_least(1)
    experts: int = key(minimum=1, below=MOST_PARTS + 1)
    experts_per_token: int = at_least(1)
    vocab: int = at_least(2)
    positions: int = at_least(1)
    classes: int = key(minimum=1, below=MOST_PARTS + 1)
    tied: bool = UNSET
    dropout: float = fraction()
    attention: str = one_of(
        "auto",
        "sdpa",
        "eager",
        "flash_attention_2",
        "flash_attention_3",
        "flash_attention_4",
        "flex_attention",
        "kernels-community/flash-attn2",
        "kernels-community/flash-attn3",
        "kernels-community/vllm-flash-attn3",
    )
    pretrained: str | None = UNSET
    weights: str | None = key(choices=("random", None), recorded="if set")
    learning_rate: float = at_least(0, identity=(RUN, TRAINING))
    # Further values of the family's configuration, by transformers' names.
    config: dict[str, Any] | None = field(default=UNSET, metadata={"recorded": "if set"})

    @property
    def at_random(self) -> bool:
        """Whether training begins from random weights, of the menu's sizes or of those of `pretrained`."""
        return not self.pretrained or self.weights == "random"

    @property
    def flex_attention(self) -> bool:
        """Whether attention is torch's compiled kernel, no single operation."""
        return self.attention == "flex_attention"

    @property
    def flash_attention(self) -> bool:
        """Whether attention is a package's: a single operation without FLOP formula, which takes no mask of T x T."""
        return self.attention not in (None, "auto", "sdpa", "eager", "flex_attention")


@dataclass
class Data(Menu):
    kind: str = kinds("dummy", "source", "text", "chat", "hub", "mrpc", "wikitext")
    samples: int | None = at_least(1)
    seq_len: int = at_least(2)
    eval_samples: int | None = at_least(1)
    eval_fraction: float = fraction()
    eval_path: str | None = UNSET
    path: str | None = UNSET
    subset: str | None = UNSET
    split: str = UNSET
    eval_split: str | None = UNSET
    task: str | None = one_of(
        "classification",
        "language_modelling",
        "chat",
        "regression",
        "multi_label",
        "masked_lm",
        "question_answering",
        None,
    )
    mask_share: float | None = key(minimum=0.01, below=1, recorded="if set")
    whole_words: bool | None = key(recorded="if set")
    documents: str | None = key(choices=("file", "blank_line", "line", None), recorded="if set")
    text_column: str = UNSET
    pair_column: str | None = UNSET
    label_column: str = UNSET
    messages_column: str = UNSET
    prompt_column: str = UNSET
    completion_column: str = UNSET
    train_on: str = one_of("answers", "all")
    template_arguments: Any = key(recorded="if set")  # a mapping, of any names
    bad_rows: str | None = key(choices=("refuse", "skip", None), recorded="if set")
    packing: bool = UNSET
    group_by_length: bool = UNSET
    preview: int = at_least(0, identity=())
    tokenizer: str | None = UNSET
    encoding: str | None = UNSET
    separator: str | None = one_of("comma", "semicolon", "tab", "bar", None)
    pad_to_multiple_of: int = at_least(1)
    pin_memory: bool = key(identity=(RUN, LABEL))
    workers: int = at_least(0, identity=(RUN, LABEL))


TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # as typed -> torch's name


@dataclass
class Precision(Menu):
    """What is computed and stored in which type. A configuration of a record of before the types were keys has none."""

    kind: str = kinds("fp32", "tf32", "fp16", "bf16", "bf16_pure", "fp8")
    # What an option leaves open is derived. Without an adapter there are no `base` and no `adapter`.
    base: str | None = key(choices=(*TYPES, None), recorded="if set")
    weights: str | None = one_of("fp32", "bf16", None)
    adapter: str | None = key(choices=("fp32", "bf16", None), recorded="if set")
    copies: str | None = key(recorded="if set")  # that DeepSpeed keeps of weights in bf16, for its optimizer; derived
    reduction: str | None = key(choices=("fp32", "bf16", None), recorded="if set")  # of gradients, over ranks

    @property
    def autocast(self) -> str | None:
        """The type of the passes under autocast: fp16 or bf16; None without autocast."""
        return {"fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}.get(self.kind)

    @property
    def weights_dtype(self) -> str:
        """torch's name of the type in which the model's trained weights are kept."""
        return TYPES[self.weights or self.usual_weights]

    @property
    def adapter_dtype(self) -> str:
        """torch's name of the type in which an adapter's matrices are kept."""
        return TYPES[self.adapter or self.usual_weights]

    @property
    def usual_weights(self) -> str:
        """The type of trained weights where nothing else is typed."""
        return "bf16" if self.kind == "bf16_pure" else "fp32"

    @property
    def timed_as(self) -> str:
        """The kind as which an estimate times a step: DeepSpeed's bf16 mode has no casts of autocast."""
        return "bf16_pure" if self.copies else self.kind

    @property
    def compute_dtype(self) -> str:
        """torch's name of the type in which products with quantised weights are computed."""
        return {"fp16": "float16", "bf16": "bfloat16", "bf16_pure": "bfloat16"}.get(self.kind, "float32")


@dataclass
class Optim(Menu):
    """kind: what builds the optimizer; transformers does it by `transformers_name`, and factory is the class that
    `factory` names, with the arguments of `args`."""

    kind: str = kinds("transformers", "muon", "adamw_fp8", "factory")
    transformers_name: str = UNSET
    factory: str | None = key(UNSET, recorded="if set")
    beta1: float = fraction()
    beta2: float = fraction()
    epsilon: float = at_least(0)
    momentum: float = fraction()
    in_backward: bool = key(identity=(RUN, LABEL))
    # Further arguments of the optimizer, as TrainingArguments.optim_args or the factory's own.
    args: dict[str, Any] | None = field(default=UNSET, metadata={"recorded": "if set"})
    compiles_step: bool = key(recorded="if set")  # on a GPU; recorded, since the workers ask for it

    @property
    def algorithm(self) -> str:
        """Which optimizer it is: the kind, or transformers' name of one that transformers has."""
        return self.transformers_name if self.kind == "transformers" else self.kind

    @property
    def keeps_gradients(self) -> bool:
        """Whether the gradients of all weights exist at once."""
        return not self.in_backward


@dataclass
class Accumulation(Menu):
    kind: str = kinds("none", "fixed", "auto")
    steps: int = at_least(1)
    reason: str | None = UNSET  # why auto chose what it did; derived


@dataclass
class Checkpointing(Menu):
    kind: str = kinds("none", "selective", "full", "offload")
    every_n_layers: int = at_least(1, identity=(RUN, LABEL))
    every_n_products: int = at_least(1, identity=(RUN, LABEL))
    mlp_tiles: int | None = key(identity=(RUN, LABEL), minimum=2)


@dataclass
class Adapter(Menu):
    kind: str = kinds("none", "lora", "qlora", "peft")
    bits: int = one_of(4, 8)
    expert_bits: int | None = one_of(4, 8, 16)
    double_quant: bool = UNSET
    rank: int = at_least(1)
    expert_rank: int = at_least(0)
    alpha: float = at_least(0)
    dropout: float = fraction()
    targets: Any = UNSET  # "all-linear", or a list of names
    dora: bool = UNSET
    rslora: bool = UNSET
    modules_to_save: list[str] | None = UNSET
    peft: Any = key(recorded="if set")  # a mapping, of any names
    learning_rate: float = at_least(0)

    @property
    def is_used(self) -> bool:
        """Whether an adapter is trained. A configuration of an older record has none."""
        return self.kind not in (None, "none")

    @property
    def bits_of_experts(self) -> int | None:
        """4 or 8, or None for experts that are not quantised, as those of older records."""
        if not self.bits or self.expert_rank is None or self.expert_bits == 16:
            return None
        return self.expert_bits or self.bits


@dataclass
class Loss(Menu):
    kind: str = kinds("standard", "chunked")
    rows: int | None = at_least(1)


@dataclass
class Kernels(Menu):
    kind: str = kinds("none", "liger")


@dataclass
class Parallelism(Menu):
    kind: str = kinds("single", "dp", "ddp", "fsdp", "fsdp_tp", "pipeline", "mesh", "zero")
    num_processes: int | None = key(minimum=1, below=MOST_PARTS + 1)
    replicas: int = UNSET  # micro-batches trained on at a time; derived
    gradient_as_bucket_view: bool = UNSET
    bucket_cap_mb: int = at_least(1)
    find_unused_parameters: bool = UNSET
    static_graph: bool = UNSET
    nccl_p2p: bool = UNSET
    strategy: str = one_of("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
    replicate_size: int = at_least(1)
    shard_size: int | None = at_least(1)
    tensor_size: int = at_least(1)
    sequence_parallel: bool = UNSET
    split: str = one_of("all", "experts")
    experts: int | None = at_least(2)
    context: int | None = at_least(1)
    stages: int = at_least(1)
    schedule: str = one_of("gpipe", "1f1b", "interleaved")
    chunks: int | None = at_least(2)
    wrap: str = one_of("layer", "size", "none")
    wrap_min_parameters: int = at_least(1)
    cpu_offload: bool = UNSET
    sync_each_batch: bool | None = UNSET
    stage: int = one_of(1, 2, 3)
    offload: str = one_of("none", "optimizer", "all")
    reduce_bucket_size: int | None = at_least(1)
    live_parameters: int = at_least(1)

    # The ranks along each axis of a mesh, or of the one axis that another mode has; 1 where it has none.

    @property
    def tensor_ranks(self) -> int:
        """Ranks that split each layer's matrices."""
        return self.tensor_size or 1

    @property
    def context_ranks(self) -> int:
        """Ranks that share out the tokens of each row."""
        return self.context or 1

    @property
    def stage_ranks(self) -> int:
        """Ranks that share out the layers."""
        return self.stages or 1

    @property
    def shard_ranks(self) -> int:
        """Ranks with rows of their own that share one copy of the weights."""
        return self.shard_size or 1

    @property
    def replicate_ranks(self) -> int:
        """Groups of ranks that have copies of the same weights."""
        return self.replicate_size or 1

    @property
    def parts_of_rank(self) -> int:
        """Parts of the model on each rank of a pipeline."""
        return self.chunks or 1

    @property
    def together(self) -> int:
        """How many ranks train on the same rows: those that share each layer, the tokens of a row, or the layers."""
        return self.tensor_ranks * self.context_ranks * self.stage_ranks

    def data_share(self, rank: int, world_size: int) -> tuple[int, int]:
        """(index, count): a rank trains on part `index` of the `count` parts of every batch.

        The ranks that share out layers are neighbours in a pipeline, and farthest apart in a mesh (`Mesh`).
        """
        count = world_size // self.together
        if self.kind != "mesh":
            return rank // self.together, count
        return rank // (self.tensor_ranks * self.context_ranks) % count, count

    @property
    def fsdp_ranks(self) -> int:
        """Of a mesh: the ranks over which FSDP shards the weights of a stage or keeps copies of them."""
        return self.replicate_ranks * self.shard_ranks * self.context_ranks

    @property
    def token_parts(self) -> int:
        """Into how many parts ranks share out the tokens of a row's hidden states."""
        parts = self.context_ranks
        if self.splits_tokens:
            parts *= self.tensor_ranks
        return parts

    @property
    def splits_tokens(self) -> bool:
        """Of a mesh: whether the ranks that split the matrices share out the tokens between these (Korthikanti et al.
        2022)."""
        return bool(self.sequence_parallel) and self.tensor_ranks > 1

    @property
    def one_process(self) -> bool:
        """Whether the mode has one process, on one GPU or on all."""
        return self.kind in ("single", "dp")

    @property
    def sharded(self) -> bool:
        """Whether each rank keeps only a part of the weights."""
        return self.kind in ("fsdp_tp", "mesh") or (self.kind == "fsdp" and self.strategy != "no_shard")

    @property
    def reshards(self) -> bool:
        """Whether FSDP frees gathered weights after the forward pass."""
        return self.strategy in ("full_shard", "hybrid_shard")

    @property
    def steps_on_host(self) -> bool:
        """Whether the optimizer's step is the host's, whose speed is assumed."""
        return bool(self.cpu_offload) or self.offload not in (None, "none")

    @property
    def in_groups(self) -> bool:
        """Whether copies of the model are kept in groups of `shard_size` ranks."""
        return self.strategy in ("hybrid_shard", "hybrid_shard_zero2")

    @property
    def waits(self) -> bool:
        """Whether nothing is computed while GPUs send: DataParallel, pipelines, and DeepSpeed's stages 1 and 2."""
        return self.kind in ("dp", "pipeline") or (self.kind == "zero" and not self.fetches_ahead)

    @property
    def fetches_ahead(self) -> bool:
        """Whether weights are gathered by the order of the step before: DeepSpeed's stage 3."""
        return self.kind == "zero" and self.stage == 3

    @property
    def saves_checkpoints(self) -> bool:
        """Whether a training in this mode can be resumed: not yet of what DeepSpeed or a mesh's pipeline keeps."""
        return self.kind != "zero" and not (self.kind == "mesh" and self.stages)

    @property
    def world_size(self) -> int:
        """`num_processes` of a resolved configuration, where it always has a value."""
        assert self.num_processes is not None, "options.parallelism.resolve fills in num_processes"
        return self.num_processes


@dataclass
class Tracker(Menu):
    kind: str = kinds("local", "none", "tensorboard", "mlflow", "wandb")
    project: str = UNSET
    tags: list[str] | None = UNSET
    entity: str | None = UNSET
    mode: str | None = UNSET
    finish_seconds: float = at_least(1)
