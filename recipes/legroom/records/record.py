"""The schema of a record: what every job writes when it ends, whatever its end was.

Bytes are integers, times are seconds, and units are in the names. None: this device or this recipe has no such figure.
The comment behind a field is its description in docs/record.schema.json.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field

from legroom.config import ESTIMATE_ONLY, identity_of, kind_of
from legroom.config.fields import RUN
from legroom.estimator.speed.summary import Operations
from legroom.estimator.verdict import DOES_NOT_FIT, FITS, TIGHT
from legroom.records.printable import printable

NOT_COUNTED = (
    "memory was not counted: the run ended in the step under the ledger, after the training. resume=latest counts it "
    "from a checkpoint."
)
SCHEMA_VERSION = 1
# What a verdict may be decided by; the weights where they alone exceed the device, and nothing was simulated.
STEP, EVALUATION, HOST, WEIGHTS = "step", "evaluation", "host", "weights"
STATUSES = ("ok", "oom", "diverged", "failed", "killed", "timeout", "refused", "interrupted", "preempted")


@dataclass
class Model:
    """The model that was built: with pretrained weights its own name and sizes, which `config` does not have."""

    name: str  # model.pretrained as it was typed, or the option of the menu `model`
    architecture: str  # the class in transformers
    attention: str | None = None  # sdpa, eager, ...: what was typed, or what model.attention=auto chose
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    vocab: int | None = None
    positions: int | None = None  # tokens of the longest sequence; null: no limit in the configuration
    trained_parameters: int | None = None  # fewer than memory.parameter_count with an adapter


@dataclass
class Training:
    """What was trained, and the losses."""

    steps: int = 0
    samples: int = 0  # a packed row of the batch has several
    tokens: int = 0  # positions computed, including padding
    losses: list[float | None] = field(default_factory=list)  # one per optimizer step; null: not a finite number
    final_loss: float | None = None
    resumed_from_step: int | None = None  # the steps before it are in the losses, and not in the speed
    padding_share: float | None = None  # of tokens, 0 to 1: what is padding
    planned_steps: int | None = None  # of a training that eval.patience has ended before

    @property
    def diverged(self) -> bool:
        """Whether the last loss is not a finite number."""
        return bool(self.losses) and (self.final_loss is None or not math.isfinite(self.final_loss))


@dataclass
class Evaluation:
    """The evaluation after the training, on held-out samples."""

    samples: int = 0  # with eval.window or eval.stride windows of the text
    loss: float | None = None
    accuracy: float | None = None  # 0 to 1
    perplexity: float | None = None
    seconds: float | None = None
    available_samples: int | None = None  # of the split; more than `samples` where eval.max_samples bounds it
    generated: list[dict] = field(default_factory=list)  # eval.generate: prompt, before and after the training
    f1: float | None = None  # 0 to 1: of several labels, all pairs of a row and a label; SQuAD's of answers
    exact_match: float | None = None  # 0 to 1: rows whose labels, or questions whose answer, are right
    pearson: float | None = None  # data.task=regression: correlation of the predicted numbers and the true ones
    most_frequent_share: float | None = None  # 0 to 1: of the most frequent label of these samples
    best_step: int | None = None  # with save.best: the step whose weights were evaluated, and saved


@dataclass
class Speed:
    """Times of the optimizer steps after the warm-up."""

    warmup_steps: int | None = None
    measured_steps: int | None = None
    step_seconds_median: float | None = None
    step_seconds_p10: float | None = None
    step_seconds_p90: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    model_flops_per_step: int | None = None
    mfu: float | None = None  # model FLOPs utilization: a share of the device's dense peak
    load_seconds: float | None = None  # from the start of the job's process until it trains
    train_seconds: float | None = None
    waiting_seconds_per_rank: list[float] = field(default_factory=list)  # per step, for other ranks, as DDP logs it
    data_wait_share: float | None = None  # of their time, 0 to 1: for batches, on the host; the longest of the ranks
    evaluation_seconds: float | None = None  # part of train_seconds: evaluations between steps
    save_seconds: float | None = None  # of checkpoints; part of train_seconds but for those behind the last step
    model_save_seconds: float | None = None  # of the trained model, behind the training
    compile_seconds: float | None = None  # part of train_seconds: torch.compile's own work, if it has any
    ledger_seconds: float | None = None  # the extra step that counts memory; in no other figure
    # recipe=estimate: between these two lie nine of ten steps
    step_seconds_low: float | None = None
    step_seconds_high: float | None = None
    bound_by: str | None = None  # of an estimate, waits for: host, arithmetic, memory, link, machine link or host link


# Figures of Memory that a single rank does not have.
OF_ALL_RANKS = (
    "per_rank",
    "all_ranks_bytes",
    "phases",
    "host_needed_bytes",
    "host_memory_bytes",
    "checkpoint_bytes",
    "disk_bytes",
)


@dataclass
class Memory:
    """The first five sum to peak_tensor_bytes: they are counted at the moment of the peak."""

    parameters_bytes: int | None = None  # weights, and autocast's low-precision copies of them
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    activations_bytes: int | None = None  # saved by the forward pass for the backward pass
    other_bytes: int | None = None  # inputs, buffers, temporaries
    peak_tensor_bytes: int | None = None
    peak_phase: str | None = None  # when the peak is: forward, backward or step
    parameter_count: int | None = None
    weights_bytes: int | None = None  # the weights alone, without autocast's copies
    largest_bytes: dict[str, int] = field(default_factory=dict)  # part: its own largest size at any moment
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    device_used_at_start_bytes: int | None = None  # by other programs, before this job used the device
    context_bytes: int | None = None  # the CUDA context and its kernels
    nccl_bytes: int | None = None  # of an estimate for several GPUs: NCCL's buffers, outside torch's allocator
    weights_device_bytes: int | None = None  # increase of NVML's figure while the weights were loaded
    host_peak_rss_bytes: int | None = None
    per_rank: list[dict] = field(default_factory=list)  # the figures above are those of the rank with the largest peak
    all_ranks_bytes: dict[str, int] = field(default_factory=dict)  # sums over all ranks
    # Of an estimate, in the order of a training. phase, device_bytes: of a GPU, host_bytes: of all ranks of a machine
    # together, host_parts: part -> bytes
    phases: list[dict] = field(default_factory=list)
    host_needed_bytes: int | None = None  # the most that a phase needs of a machine's memory
    host_memory_bytes: int | None = None  # what the machine has, where that is known
    checkpoint_bytes: int | None = None  # one checkpoint, of all ranks together: what a signal has a training save
    disk_bytes: int | None = None  # checkpoints that stay, the one that is written, and the saved model

    def of_rank(self, rank: int) -> dict:
        """An entry of per_rank: these figures, as those of a rank."""
        figures = asdict(self)
        for name in OF_ALL_RANKS:
            del figures[name]
        return {"rank": rank} | figures


@dataclass
class Estimate:
    """The result of recipe=estimate, whose other figures are predictions."""

    fits: bool  # with at least kept_bytes left: the verdict is 'fits'
    margin_bytes: int  # device memory that stays free; negative: how much is missing
    capacity_bytes: int
    verdict: str | None = None  # fits, tight (less than kept_bytes stay free) or does not fit
    kept_bytes: int | None = None  # what 'fits' keeps free: estimate.margin of the reserved memory, and lacking_bytes
    lengths_steps: int | None = None  # of padded data: steps on batches drawn from it, replayed in random order
    shown_reserved_bytes: int | None = None  # what fragmentation makes of the reserved memory: the median of the orders
    shown_reserved_low_bytes: int | None = None  # the same in the best of the orders that were tried
    shown_reserved_high_bytes: int | None = None  # the same in the worst
    free_reserved_bytes: int | None = None  # the same on a GPU without limit
    releases: int | None = None  # how often cached memory is given back to make room
    expandable_reserved_bytes: int | None = None  # with PYTORCH_ALLOC_CONF=expandable_segments:True
    padding_share: float | None = None  # of the positions in the batches
    first_step_seconds: float | None = None  # of rows that may differ in length: the mean of the first steps
    unpadded_tokens_per_second: float | None = None  # in those steps, of all ranks; padding is not counted
    lacking_bytes: int | None = None  # what the worst order lacks of a GPU with just what the longest rows need
    evaluation_reserved_bytes: int | None = None  # reserved once the evaluation is over
    evaluation_margin_bytes: int | None = None  # device memory that stays free in the evaluation; negative: missing
    decided_by: str | None = None  # the phase whose margin_bytes these are; host: its memory lacks; weights: they alone
    first_lacking: str | None = None  # the first phase that lacks room, on the device or else on the host
    host_margin_bytes: int | None = None  # of a machine's memory that stays free; negative: how much is missing
    limit_bytes: int | None = None  # of the capacity, where launch.memory_limit_gib or PYTORCH_ALLOC_CONF allows fewer
    efficiencies_from: str | None = None  # published, measured or assumed
    seconds: float | None = None  # the time that the estimate itself took, without imports
    largest: list[dict] = field(default_factory=list)  # estimate.explain: tensors at the peak and their modules
    proposal: list[str] = field(default_factory=list)  # overrides with which it is to fit, where it does not
    levers: list[dict] = field(default_factory=list)  # estimate.explain: the bytes that each option alone would save


@dataclass
class Lengths:
    """The tokens of the rows to train on, which an estimate counts on."""

    rows: int
    shortest: int
    median: int
    longest: int
    from_rows: bool  # false: no row was read, and all are taken to have data.seq_len tokens


@dataclass
class WholeRun:
    """The whole training from the start of its process to its end, as an estimate predicts it. Sums of its parts."""

    steps: int  # optimizer steps
    seconds: float
    seconds_low: float
    seconds_high: float
    parts: list[dict]  # name, count, seconds, seconds_low, seconds_high, and from: predicted, measured or assumed
    gpus: int  # whose time is paid for
    epochs: float | None = None  # passes over the rows
    rows: int | None = None  # to train on
    price_per_hour: float | None = None  # of all these GPUs together, in the currency of gpu.price_per_hour
    cost: float | None = None
    cost_low: float | None = None
    cost_high: float | None = None


def verdict_of(estimate: Estimate) -> str:
    """FITS, TIGHT or DOES_NOT_FIT; records of earlier versions only say whether it fits."""
    if estimate.verdict:
        return printable(estimate.verdict)
    return FITS if estimate.fits else DOES_NOT_FIT


LARGEST_EXPONENT = 700  # math.exp overflows above 709: such a perplexity is infinite
SCORES = ("accuracy", "perplexity", "f1", "exact_match", "pearson")  # beside an evaluation's loss
SHARES = {"accuracy": "accuracy", "f1": "F1", "exact_match": "exact match"}


def quality(evaluation: Evaluation) -> str:
    """The scores of an evaluation in words."""
    scores = []
    for key, name in SHARES.items():
        share = getattr(evaluation, key)
        if share is None:
            continue
        text = f"{name} {share:.1%}"
        if key == "accuracy" and evaluation.most_frequent_share is not None:
            text += f" (the most frequent label alone: {evaluation.most_frequent_share:.1%})"
        scores.append(text)
    if evaluation.pearson is not None:
        scores.append(f"correlation {evaluation.pearson:.4f}")
    if scores:
        return ", ".join(scores)
    if evaluation.perplexity is not None:
        return f"perplexity {evaluation.perplexity:.2f}"
    return "no score"  # of random spans, of one number or the same ones, or of a loss that is no number


def evaluated_in(config: dict) -> str:
    """What the samples of an evaluation are."""
    evaluation = config.get("eval") or {}
    return "windows" if evaluation.get("window") or evaluation.get("stride") else "samples"


@dataclass
class Error:
    """Why a job did not end ok. rank: the first process that failed."""

    phase: str  # load, forward, backward, step, eval or save
    type: str
    message: str
    hint: str | None = None
    rank: int = 0


@dataclass
class Program:
    """The script of `legroom check`, which was followed on an emulated GPU."""

    name: str  # the file without its folder, or the module
    typed: str  # the script, or its launcher, with its arguments, as typed, but *** for access tokens and passwords
    options: list[str]  # of `legroom check`, as typed before it
    steps: int  # optimizer steps that were followed
    ended_by: str  # legroom, once the steps were followed or where it could not go on, or script
    exit_code: int | None = None  # the script's own; null where Legroom or a signal ended it
    largest_batch: str | None = None  # --largest-batch: the argument with the largest that fits this GPU


@dataclass
class Record:
    """What a job was, where it ran and what came of it."""

    recipe: str  # trainer, accelerate or estimate
    overrides: list[str]  # from the command line
    config: dict  # resolved: every group and key; with a program the GPU alone
    config_key: str  # hash of the configuration and of the library versions
    environment: dict  # versions, device, processor, git revision, some variables
    status: str = "failed"
    warnings: list[str] = field(default_factory=list)
    model: Model | None = None
    training: Training = field(default_factory=Training)
    evaluation: Evaluation | None = None
    speed: Speed = field(default_factory=Speed)
    memory: Memory = field(default_factory=Memory)
    error: Error | None = None
    estimate: Estimate | None = None
    lengths: Lengths | None = None  # of an estimate
    whole_run: WholeRun | None = None  # of an estimate for which the number of steps is known
    operations: Operations | None = None
    program: Program | None = None  # of `legroom check`, whose recipe is estimate
    schema_version: int = SCHEMA_VERSION


def shown_status(outcome: Record) -> str:
    """The status as people read it: an estimate has not run out of memory, it does not fit, or is tight."""
    if outcome.recipe == "estimate" and outcome.status == "oom":
        return DOES_NOT_FIT
    if outcome.status == "ok" and outcome.estimate is not None and verdict_of(outcome.estimate) == TIGHT:
        return TIGHT
    return outcome.status


def config_key(config: dict, versions: dict) -> str:
    """Twelve hex digits that name a job: same configuration and same libraries, same key.

    config: resolved. It counts every key whose identity in the schema is `config.fields.RUN`, except for the menus that
    this recipe does not read. versions: package -> version.
    """
    kept = {}
    for section, values in config.items():
        if section in ESTIMATE_ONLY and kind_of(config, "recipe") != "estimate":
            continue
        if isinstance(values, dict):
            counted = {key: value for key, value in values.items() if RUN in identity_of(f"{section}.{key}")}
            if counted:
                kept[section] = counted
        elif RUN in identity_of(section):
            kept[section] = values
    return hashlib.sha256(json.dumps([kept, versions], sort_keys=True).encode()).hexdigest()[:12]
