"""What a multiplication says before anything is simulated: that the weights alone exceed the card. Imports no torch.

The number of weights is one that the model has at least, from its sizes: matrices of attention, of the feed-forward
layers and of the embeddings. Biases, norms and what a family has beside them are left out, so that a model that could
fit is never refused.
"""

import math
from typing import Any, NamedTuple

from legroom import paths, units, yaml_table
from legroom.config import Config
from legroom.config.menus import Model
from legroom.estimator import room
from legroom.machine import gpu_specs
from legroom.options import gpu as gpu_options
from legroom.options import model_names, task
from legroom.records.record import DOES_NOT_FIT, WEIGHTS, Error, Estimate, Record

# Families whose feed-forward layers are two matrices; those of all others have a third, the gate.
TWO_MATRICES = ("bert", "roberta", "xlm-roberta", "distilbert", "gpt2", "gpt_neox", "starcoder2")
OTHER_ATTENTION = ("deepseek_v2", "deepseek_v3")  # families whose attention has other matrices, which are left out here
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ADAM_BYTES = 8  # two states in fp32
FILLED = 0.8  # of a card's room, by weights, gradients and states, beside what a step needs for its activations
COUNTS = (2, 4, 8, 16, 32, 64, 128)  # of GPUs that are proposed


def answer(cfg: Config, outcome: Record) -> bool:
    """Fill in the record of an estimate whose weights alone exceed the card; False for any other.

    cfg: resolved, of recipe=estimate. estimate.explain=true asks for every figure, and is never answered here.
    """
    asks_for_more = cfg.estimate.explain or cfg.device == "cpu" or cfg.gpu.memory_bytes is None
    if asks_for_more or cfg.parallelism.steps_on_host:
        return False
    sizes = _sizes(cfg)
    if sizes is None:
        return False
    weight_bytes = _weight_bytes(cfg, sizes)
    nccl_bytes = cfg.gpu.nccl_bytes if cfg.parallelism.world_size > 1 else 0
    usable = room.usable_bytes(cfg.gpu, nccl_bytes, cfg.launch.memory_limit_gib)
    if weight_bytes <= usable:
        return False
    context_bytes = room.context(cfg.gpu)[0]
    memory = outcome.memory
    memory.parameter_count = _matrices(cfg, sizes) + _embeddings(cfg, sizes)
    memory.parameters_bytes, memory.context_bytes, memory.nccl_bytes = weight_bytes, context_bytes, nccl_bytes or None
    memory.device_used_bytes = weight_bytes + context_bytes + nccl_bytes
    margin = usable - weight_bytes
    outcome.status = "oom"
    outcome.estimate = Estimate(False, margin, cfg.gpu.memory_bytes, DOES_NOT_FIT, 0, decided_by=WEIGHTS)
    limit = usable + context_bytes + nccl_bytes
    outcome.estimate.limit_bytes = limit if limit < cfg.gpu.memory_bytes else None
    where = " on each GPU" if cfg.parallelism.world_size > 1 else ""
    message = (
        f"it would not fit: the weights alone take {units.size(weight_bytes)} at least{where}, and "
        f"{units.size(usable)} are there for them."
    )
    ways = _ways(cfg, sizes, usable)
    outcome.error = Error("load", "PredictedOutOfMemory", message, _advice(ways))
    if ways:
        outcome.estimate.proposal = ways[0].overrides.split()
    return True


# --- how many weights there are ------------------------------------------------------------------------


def _sizes(cfg: Config) -> Model | None:
    """The sizes of the model; None where they are not known without reading its configuration."""
    if not cfg.model.pretrained:
        return cfg.model
    option = None
    if not paths.expanded(cfg.model.pretrained).exists() and model_names.hub_id(cfg.model.pretrained):
        option = model_names.option(cfg.model.pretrained)
    if option is None:
        return None
    values: dict[str, Any] = yaml_table.read(paths.CONF / "model" / f"{option}.yaml")
    sizes: dict[str, Any] = {key: values.get(key) for key in Model.__dataclass_fields__}
    return Model(**sizes)


def least_parameters(cfg: Config) -> int:
    """Weights that a model of the menu has at least, from its sizes."""
    return _matrices(cfg, cfg.model) + _embeddings(cfg, cfg.model)


def _matrices(cfg: Config, sizes: Model) -> int:
    """Weights of the layers' matrices, at least."""
    further = sizes.config or {}
    in_feed_forward = 3 * sizes.width * sizes.feed_forward
    if sizes.family in TWO_MATRICES:
        in_feed_forward = 2 * sizes.width * sizes.feed_forward
    in_attention = 0
    if sizes.family not in OTHER_ATTENTION:
        of_head = further.get("head_dim") or sizes.width // sizes.heads
        in_attention = 2 * sizes.width * of_head * (sizes.heads + (sizes.kv_heads or sizes.heads))
    with_experts = sizes.layers - further.get("first_k_dense_replace", 0)
    return sizes.layers * in_attention + with_experts * (sizes.experts or 1) * in_feed_forward


def _embeddings(cfg: Config, sizes: Model) -> int:
    """Weights of the embedding and, in a language model that does not share it, of the output layer."""
    matrices = 1
    if task.is_causal(cfg) and not sizes.tied:
        matrices = 2
    return matrices * sizes.vocab * sizes.width


# --- what they take ------------------------------------------------------------------------------------


def _weight_bytes(cfg: Config, sizes: Model) -> int:
    """Bytes of the weights on one GPU, at least."""
    return (_bytes_in(cfg, sizes, cfg.adapter.bits)) // parts(cfg)


def _bytes_in(cfg: Config, sizes: Model, bits: int | None) -> int:
    """Bytes of all weights. bits: of those in the layers' matrices, if they are quantised."""
    item = ITEM_BYTES[cfg.model_dtype]
    matrices = _matrices(cfg, sizes)
    in_matrices = matrices * bits // 8 if bits else matrices * item
    return in_matrices + _embeddings(cfg, sizes) * item


def parts(cfg: Config) -> int:
    """Into how many parts the weights are shared out at most."""
    mode = cfg.parallelism
    if mode.kind == "pipeline":
        return mode.stage_ranks
    if mode.kind == "mesh":
        return mode.world_size // mode.replicate_ranks
    if mode.in_groups and mode.sharded:
        return max(1, gpu_options.sharding_group(cfg))
    if mode.sharded or mode.fetches_ahead or mode.experts:
        return mode.world_size
    return 1


# --- advice --------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """Overrides with which there is room, and what would take it."""

    overrides: str
    because: str = ""

    def __str__(self) -> str:
        return f"{self.overrides} ({self.because})" if self.because else self.overrides


def _advice(ways: list[Way]) -> str:
    """The ways, in a sentence."""
    if not ways:
        return "Choose a smaller model, or more GPUs with parallelism=fsdp."
    listed = "; or ".join(str(way) for way in ways)
    return f"By multiplication, there is room with {listed}. estimate.explain=true simulates the step all the same."


def _ways(cfg: Config, sizes: Model, usable: int) -> list[Way]:
    """What would have room for the weights, by multiplications too."""
    ways = []
    if not cfg.adapter.bits:
        quantised = _bytes_in(cfg, sizes, 4)
        count = _gpus_for(quantised, cfg, usable, (1, *COUNTS))
        if count == 1:
            ways.append(Way("adapter=qlora", f"weights in 4 bits: {units.size(quantised)}"))
        elif count is not None:
            shared = f"weights in 4 bits: {units.size(quantised / count)} on each"
            ways.append(Way(f"adapter=qlora parallelism=fsdp parallelism.num_processes={count}", shared))
    needed = _bytes_in(cfg, sizes, cfg.adapter.bits)
    what = "the weights"
    if not cfg.adapter.is_used:
        weights = _matrices(cfg, sizes) + _embeddings(cfg, sizes)
        needed += weights * (ITEM_BYTES[cfg.model_dtype] + ADAM_BYTES)
        what = "weights, gradients and AdamW's states"
    count = _gpus_for(needed, cfg, usable, COUNTS)
    if count is not None:
        shared = f"{what}: {units.size(needed / count)} on each"
        ways.append(Way(f"parallelism=fsdp parallelism.num_processes={count}", shared))
    larger = _larger_card(needed, cfg.gpu.memory_bytes)
    if larger and cfg.parallelism.world_size == 1:
        ways.append(Way(f"gpu={larger}"))
    return ways


def _gpus_for(needed: int, cfg: Config, usable: int, counts: tuple[int, ...]) -> int | None:
    """The least number of these GPUs that share out so many bytes; None where the most are not enough.

    usable: bytes of one GPU as the configuration is.
    """
    for count in counts:
        room_on_each = usable
        if count > 1 and cfg.parallelism.world_size == 1:
            room_on_each -= cfg.gpu.nccl_bytes
        if count >= cfg.parallelism.world_size and needed / count <= FILLED * room_on_each:
            return count
    return None


def _larger_card(needed: int, memory_bytes: int) -> str:
    """The smallest card of the menu with room for so many bytes; '' where none has it."""
    cards = []
    for name, figures in gpu_specs.options().items():
        if figures["memory_bytes"] > memory_bytes and needed <= FILLED * figures["memory_bytes"]:
            cards.append((figures["memory_bytes"], name))
    return min(cards, default=(math.inf, ""))[1]
