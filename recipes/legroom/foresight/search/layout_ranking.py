"""What arithmetic says of layouts of parallelism=mesh, so that only the best few of hundreds are estimated.

Seconds of a step and bytes of a rank, from sizes of the model alone. Both are rough: they order configurations and
leave out what is too large, and no figure of a table comes from them.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legroom import units
from legroom.config import Config
from legroom.estimator.speed import efficiencies, links
from legroom.estimator.speed.operation_names import COLLECTIVE
from legroom.estimator.speed.operations import Operation
from legroom.foresight import instant
from legroom.foresight.search import space
from legroom.foresight.search.candidates import Candidate
from legroom.foresight.search.found import Found
from legroom.foresight.search.layouts import KEEPS_GATHERED
from legroom.levers.optim import rules as optim
from legroom.records.record import verdict_of

MOST_ESTIMATED = 6  # twice as many where none of the first fits
AT_ONCE = 2  # estimates, before what does not fit gives way to the next configuration of its layout
REACHED = 0.65  # of the peak, by large matrix products with all that is between them: for the order alone
ITEM = 2  # bytes of an activation and of a gathered weight, in 16 bits
ADAM_STATES = 2
LOGIT = 12  # bytes: in 16 bits and in fp32, and the gradients of both
# The share of the forward pass that the backward pass repeats.
REPEATED = {"none": 0.0, "selective": 0.05, "selective_half": 0.4, "full": 1.0}


@dataclass(frozen=True)
class Arithmetic:
    """Of one configuration. step_seconds: of a whole step. least_bytes: of the rank with most. waiting: the share of
    a step for which a rank waits for the other stages. tensor_seconds, shard_seconds: what the ranks that split
    matrices, and those that share out weights, take to exchange in a step; the latter overlaps with the computation.
    """

    step_seconds: float
    least_bytes: float
    kept_bytes: float  # of least_bytes those of weights, gradients and states
    waiting: float
    tensor_seconds: float
    shard_seconds: float

    @property
    def reason(self) -> str:
        """What the time of this layout is made of, as it stands behind its ratio in the output."""
        parts = []
        if self.waiting:
            parts.append(f"{self.waiting:.0%} waiting for other stages")
        if self.tensor_seconds:
            parts.append(f"{self.tensor_seconds / self.step_seconds:.0%} exchanges of tensor_size")
        if self.shard_seconds >= self.step_seconds:
            parts.append("bound by what shard_size ranks send")
        return f" ({', '.join(parts)})" if parts else ""


class Ranking:
    """The configurations of a search over layouts, the fastest by arithmetic first.

    usable: bytes of a GPU that a rank may take and be said to fit.
    """

    def __init__(self, search: space.SearchSpace, usable: float):
        self.usable = usable
        self.arithmetic: list[tuple[Candidate, Arithmetic]] = []
        for values in itertools.product(*search.values.values()):
            chosen = dict(zip(search.values, values))
            if search.possible(chosen) and _is_divisible(search, chosen):
                counted = arithmetic(search.config(chosen))
                self.arithmetic.append((Candidate(chosen, counted.step_seconds, counted.least_bytes), counted))
        self.arithmetic.sort(key=lambda pair: pair[0].step_seconds)
        self.layouts = search.values["parallelism"]
        self.estimated: list[Candidate] = []

    @property
    def candidates(self) -> list[Candidate]:
        return [candidate for candidate, _ in self.arithmetic]

    def next_ones(self, tried: Sequence[Found]) -> list[Candidate]:
        """What to estimate next: of each layout of which nothing fits yet the fastest that may; none at the end.

        tried: the estimates of what was given out before, in its order.
        """
        finished = set[str]()  # layouts of which one fits, or is refused
        room: dict[tuple[str, str | None], float] = {}  # (layout, checkpointing) -> what arithmetic may say of the next
        for candidate, found in zip(self.estimated, tried):
            if found.outcome is None or found.fits:
                finished.add(candidate.chosen["parallelism"])
            else:
                missing = (found.estimate.kept_bytes or 0) - found.estimate.margin_bytes
                room[_kind(candidate)] = candidate.least_bytes - missing
        left = MOST_ESTIMATED - len(tried)
        if left <= 0 and not any(found.fits for found in tried):
            left = 2 * MOST_ESTIMATED - len(tried)
        best: dict[str, Candidate] = {}
        for candidate in self.candidates:
            layout = candidate.chosen["parallelism"]
            has_room = candidate.least_bytes <= min(self.usable, room.get(_kind(candidate), self.usable))
            if layout not in finished and has_room and candidate not in self.estimated:
                best.setdefault(layout, candidate)
        order = list(best.values())
        if not order and not self.estimated:  # nothing has room: what comes closest
            order = sorted(self.candidates, key=lambda candidate: candidate.least_bytes)
        chosen = order[: max(0, min(left, AT_ONCE))]
        self.estimated += chosen
        return chosen

    def left_out(self, tried: Sequence[Found], shown: Sequence[Found]) -> list[str]:
        """A line for each layout that has no row among those `shown`, the fastest first: why. tried: all estimates."""
        in_table = {found.chosen["parallelism"] for found in shown}
        first = min((candidate.step_seconds for candidate in self.estimated), default=math.inf)
        lines: list[tuple[float, str]] = []
        for layout in self.layouts:
            if layout in in_table:
                continue
            estimates = [found for found in tried if found.chosen["parallelism"] == layout]
            if estimates:
                lines.append((0.0, f"{layout}: {_outcome(estimates[-1])}"))
                continue
            own = [pair for pair in self.arithmetic if pair[0].chosen["parallelism"] == layout]
            may_fit = [counted for candidate, counted in own if candidate.least_bytes <= self.usable]
            if may_fit:
                times = may_fit[0].step_seconds / first
                lines.append((times, f"{layout}: {times:.2f} times the fastest{may_fit[0].reason}"))
            elif own:
                counted = min((counted for _, counted in own), key=lambda counted: counted.least_bytes)
                why = (
                    f"too large, about {units.size(counted.least_bytes)}, of which {units.size(counted.kept_bytes)} "
                    "are weights, gradients and states"
                )
                lines.append((math.inf, f"{layout}: {why}"))
            else:
                lines.append((math.inf, f"{layout}: the effective batch has too few micro-batches for its stages"))
        return [line for _, line in sorted(lines)]


def _kind(candidate: Candidate) -> tuple[str, str | None]:
    """What configurations have in common whose bytes differ by what arithmetic knows well."""
    return candidate.chosen["parallelism"], candidate.chosen.get("checkpointing")


def _outcome(found: Found) -> str:
    """What the estimate of a layout without a row says, in a few words."""
    if found.outcome is None:
        return f"refused: {found.refused}"
    levers = ", ".join(f"{lever}={value}" for lever, value in found.chosen.items() if lever != "parallelism")
    if found.fits:
        return f"estimated with {levers}: fits, and slower than the rows above ({found.step_seconds:.3g} s a step)"
    return f"estimated with {levers}: {verdict_of(found.estimate)}, {units.size(found.used_bytes)}"


def _is_divisible(search: space.SearchSpace, chosen: dict[str, Any]) -> bool:
    """Whether the effective batch and the pipeline's schedule allow the batch of a choice."""
    cfg = search.config(chosen)
    own = cfg.parallelism
    if search.effective % (cfg.batch.per_device * own.replicas):
        return False
    return cfg.accumulation.steps >= own.stage_ranks


def arithmetic(cfg: Config) -> Arithmetic:
    """Of a resolved configuration with parallelism=mesh."""
    own, sizes = cfg.parallelism, cfg.model
    tensor_size, stages, shard_size = own.tensor_ranks, own.stage_ranks, own.shard_ranks
    steps = cfg.accumulation.steps
    embedding = sizes.vocab * sizes.width
    embeddings = 1 if sizes.tied else 2
    in_layers = instant.least_parameters(cfg) - embedding * embeddings
    layers = -(-sizes.layers // stages)  # of the longest stage
    weights = (in_layers / sizes.layers * layers + embedding) / tensor_size
    if stages == 1 and not sizes.tied:
        weights += embedding / tensor_size

    # The computation: 6 operations for each weight and token (2 forward, 4 backward), and 6 T D for each layer and
    # token of causal attention over rows of T tokens (Narayanan et al. 2021, arXiv 2104.04473, halved for the mask).
    tokens = cfg.batch.per_device * cfg.data.seq_len  # of a micro-batch
    # The last stage has the output layer beside its layers, and all others wait for it.
    of_layers = 2 * in_layers / sizes.layers + 2 * cfg.data.seq_len * sizes.width
    forward = layers * of_layers * (1 + REPEATED.get(cfg.checkpointing.kind, 1.0) / 3) + 2 * embedding
    computing = 3 * tokens * forward / tensor_size / (_peak(cfg) * REACHED)

    # With sequence_parallel four exchanges in a forward pass, six in a backward pass (`docs/parallelism.md`).
    hidden = tokens * sizes.width * ITEM
    exchanges = 10
    if cfg.checkpointing.kind == "full":
        exchanges += 4
    exchanging = exchanges * layers * _seconds(cfg, "all_gather_into_tensor", hidden, tensor_size, 1)

    # Every micro-batch passes each stage, and the first and last have p - 1 more to wait for.
    passes = (computing + exchanging) * (steps + stages - 1)
    waiting = (stages - 1) / (steps + stages - 1)

    gathers = 2 * steps
    if own.strategy == KEEPS_GATHERED:
        gathers = 1 if own.stages else steps
    reductions = steps if own.sync_each_batch else 1
    gathering = _seconds(cfg, "all_gather_into_tensor", weights * ITEM, shard_size, tensor_size)
    reducing = _seconds(
        cfg, "reduce_scatter_tensor", weights * instant.ITEM_BYTES[cfg.model_dtype], shard_size, tensor_size
    )
    if own.stages and own.strategy != KEEPS_GATHERED:
        passes += gathers * gathering  # a stage waits for its weights: nothing else of it runs then
    shard_seconds = gathers * gathering + reductions * reducing
    blocks = efficiencies.of_gpu(cfg.gpu).collective_blocks[cfg.gpu.link]  # multiprocessors that an exchange takes
    step_seconds = max(passes + shard_seconds * min(1.0, blocks / cfg.gpu.sm_count), shard_seconds)

    kept, least = _least_bytes(cfg, weights, layers, tokens)
    return Arithmetic(step_seconds, least, kept, waiting, exchanging * (steps + stages - 1), shard_seconds)


def _least_bytes(cfg: Config, weights: float, layers: int, tokens: int) -> tuple[float, float]:
    """(weights, gradients and states of a rank, these and the activations that it has at its peak). weights: how many
    a stage of the pipeline has of them, on each rank that splits matrices."""
    own, sizes = cfg.parallelism, cfg.model
    item = instant.ITEM_BYTES[cfg.model_dtype]
    states = 0
    if optim.is_adamw(cfg):
        states = ADAM_STATES * item
    kept = weights * (2 * item + states) / own.shard_ranks
    if own.shard_ranks > 1:
        if not own.sync_each_batch:
            kept += weights * item  # gradients of the whole stage, until they are reduced
        if own.strategy == KEEPS_GATHERED:
            kept += weights * ITEM
    tensor_size = own.tensor_ranks
    kv_width = sizes.width // sizes.heads * (sizes.kv_heads or sizes.heads)
    # Of a token in a layer: results of matrix products and attention; without checkpointing also what stands between
    # them, and the fp32 inputs of two norms. Of split matrices the products that are to be summed are whole: selective
    # checkpointing keeps those of two, every second one of them with selective_half.
    to_sum = (tensor_size - 1) * sizes.width
    products = 5 * sizes.width + 2 * kv_width + 2 * sizes.feed_forward
    of_token = {
        "none": products + 6 * sizes.width + 2 * sizes.feed_forward,
        "selective": products + 2 * to_sum,
        "selective_half": 4 * sizes.width + kv_width + sizes.feed_forward + to_sum,
    }.get(cfg.checkpointing.kind, sizes.width)
    under_way = min(own.stage_ranks, cfg.accumulation.steps)
    of_stage = layers * tokens * of_token * ITEM / tensor_size
    logits = 0.0
    if cfg.loss.kind == "standard":
        logits = LOGIT * tokens * sizes.vocab / tensor_size
    if own.stages:  # torch's stages keep a buffer for each message until the end of the step
        kept += cfg.accumulation.steps * tokens * sizes.width * ITEM / tensor_size
    whole = 0.0  # what is gathered, and gradients that are not reduced yet: of the embeddings and of a layer
    if own.shard_ranks > 1:
        embedding = sizes.vocab * sizes.width / tensor_size
        in_layer = (weights - embedding) / layers
        embeddings = 1 if own.stages or sizes.tied else 2
        whole = (embeddings * embedding + in_layer) * (ITEM + item) + in_layer * ITEM
    return kept, kept + whole + max(under_way * of_stage, of_stage + logits)


def _peak(cfg: Config) -> float:
    """Operations a second of the GPU, at most."""
    gpu = cfg.gpu
    rates = {"bf16": gpu.bf16_tflops, "bf16_pure": gpu.bf16_tflops, "tf32": gpu.tf32_tflops}
    return (rates.get(cfg.precision.kind) or gpu.fp32_tflops or 1.0) * 1e12


def _seconds(cfg: Config, name: str, size_bytes: float, ranks: int, stride: int) -> float:
    """Of one exchange between every stride-th of so many ranks."""
    operation = Operation(name, COLLECTIVE, bytes=int(size_bytes), shape=(ranks, stride))
    reached = efficiencies.of_gpu(cfg.gpu)
    return links.collective_seconds(operation, cfg.gpu, cfg.parallelism.world_size, reached)[0]
