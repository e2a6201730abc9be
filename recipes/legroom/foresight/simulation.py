"""A training step on the fake device: the step of the raw loop, run without computing anything, and its figures.

Two steps are run: the first creates the optimizer's states, and the second is like every later one. Of the equal
micro-batches of an accumulation two are enough: one that allocates the gradients, and one that adds to them. With other
ranks three are run, because only the last one sends the gradients.
"""

import copy
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from legroom.config import Config
from legroom.data import collate, data_loader, dataset
from legroom.data.dataset import Data
from legroom.data.rows import samples_in
from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.op_trace import OpTrace
from legroom.estimator.ledger.storage_log import StorageLog
from legroom.estimator.memory import allocator
from legroom.estimator.memory.settings import UNLIMITED, limits_of
from legroom.estimator.speed import links
from legroom.estimator.speed.operations import Tally
from legroom.foresight import (
    evaluation_memory,
    fake_ranks,
    fallbacks,
    fullest_rank,
    run_schedule,
    stored,
    uneven_lengths,
)
from legroom.foresight.kept_bytes import Stored
from legroom.foresight.replicas import Replicas
from legroom.foresight.run_schedule import RunSchedule
from legroom.foresight.uneven_lengths import DrawnSteps, FirstSteps, UnevenLengths
from legroom.foresight.zero import ranks as zero_ranks
from legroom.levers.parallelism import pipeline_rules
from legroom.models import quantized
from legroom.parallelism import fsdp, mesh, pipeline, unwrap
from legroom.ranks import collectives
from legroom.records.record import Model
from legroom.training import setup

MICRO_BATCHES = 2
AS_WRITTEN = "compile=true is estimated as the step is written: a compiled step usually needs less memory and time."
# Where a compiled backward pass computes again is up to Inductor's order of kernels, which is not modelled: four steps
# on a CPU took 3 to 30 % more than as written (docs/results/estimates.md, Compiled steps).
CHECKPOINTED_ERROR = 0.3
CHECKPOINTED = (
    " With checkpointing it may need more memory: compiled steps on a CPU took 3 to 30 % more than as written, and the "
    "verdict of a GPU keeps 30 % free."
)


@dataclass
class SimulatedStep:
    """The figures of one process, in bytes. parts: see `MemoryLedger.parts`."""

    parts: dict[str, Any]
    parameter_count: int
    samples: int  # of one optimizer step of all ranks
    tokens: int  # of one optimizer step of all ranks
    micro_batches: int  # of one optimizer step
    model_flops: int | None  # of one optimizer step
    events: list[allocator.Request]  # requests to the allocator of a GPU; see `OpTrace.allocator_events`
    paged_bytes: int  # of optimizer states, outside the allocator
    tally: Tally  # of one optimizer step
    model: Model
    warnings: list[str]
    trace: OpTrace
    first_steps: FirstSteps | None = None  # of data whose rows may differ in length
    drawn: DrawnSteps | None = None  # of padded data: steps on batches of different lengths
    demand: allocator.Demand | None = None  # on the allocator of a GPU
    lengths: UnevenLengths | None = None  # what the drawn steps ask of it
    error_share: float = 0.0  # of the reserved memory, by which the prediction may be too low, beyond the usual margin
    evaluation: evaluation_memory.EvaluationRequests | None = None  # behind steps, if there is one
    schedule: RunSchedule | None = None  # of the whole training
    kept: Stored | None = None  # what this rank keeps between steps
    unknown_settings: list[str] = field(default_factory=list)  # of the allocator, a warning for each
    rank: int = 0
    own_layers: int = 0  # of a rank of a pipeline

    @property
    def beside_frozen(self) -> bool:
        """Whether most weights are not trained."""
        return 2 * (self.model.trained_parameters or self.parameter_count) < self.parameter_count


@dataclass(frozen=True)
class Listener:
    """Follows a simulation that takes seconds.

    show: called with what is simulated next. first: called with the requests to the allocator and the operations of the
    step on the longest rows, before anything else is simulated; with None for the operations where they are not those
    of the whole step.
    """

    show: Callable[[str], None]
    first: Callable[[list[allocator.Request], Tally | None], None]


NOBODY = Listener(lambda text: None, lambda events, tally: None)


class _DataOnce:
    """`dataset.build_data`, or what replaces it: builds the rows once, and notes how long that takes (seconds)."""

    def __init__(self, build: Callable[..., Data]):
        self.build = build
        self.seconds = 0.0
        self._data: Data | None = None

    def __call__(self, *args: Any) -> Data:
        if self._data is None:
            began = time.perf_counter()
            self._data = self.build(*args)
            self.seconds = time.perf_counter() - began
        return self._data


def simulate_step(
    cfg: Config,
    folder: str,
    capacity_bytes: int = UNLIMITED,
    record_origins: bool = False,
    draw_lengths: bool = False,
    listener: Listener = NOBODY,
) -> SimulatedStep:
    """Run two steps of a resolved configuration on tensors without data.

    folder: for TrainingArguments. capacity_bytes: what the GPU has for torch's allocator; 0: it is not asked.
    record_origins: the trace also records which module and operation made each tensor. draw_lengths: also an
    evaluation, and with padded data steps on batches in the order of the training. With compile=true it is the step as
    written, and a warning says so.
    Raises Refusal as a training would, and UnknownOperation.
    """
    build_data = None
    if listener is not NOBODY and _has_many_long_batches(cfg):
        build_data = _DataOnce(dataset.build_data)
        _first_look(cfg.as_written(), folder, capacity_bytes, listener, build_data)
        listener = replace(listener, first=NOBODY.first)
    steps = simulate_ranks(
        cfg.as_written(),
        folder,
        capacity_bytes=capacity_bytes,
        record_origins=record_origins,
        draw_lengths=draw_lengths,
        listener=listener,
        build_data=build_data,
    )
    written = fullest_rank.of(cfg, steps)
    if not cfg.compile:
        return written
    if cfg.checkpointing.kind == "none":
        return replace(written, warnings=[*written.warnings, AS_WRITTEN])
    warnings = [*written.warnings, AS_WRITTEN + CHECKPOINTED]
    return replace(written, warnings=warnings, error_share=CHECKPOINTED_ERROR)


def simulate_ranks(cfg: Config, folder: str, **settings: Any) -> list[SimulatedStep]:
    """`simulate_step` of each rank that an estimate looks at, of a configuration that is not compiled."""
    return [_simulate(cfg, rank, folder, **settings) for rank in fullest_rank.simulated_ranks(cfg)]


def _has_many_long_batches(cfg: Config) -> bool:
    """Whether all micro-batches of an accumulation have to be simulated, since their rows differ in length, and one
    rank is enough."""
    is_uneven = cfg.data.kind not in ("dummy", "source")
    return is_uneven and cfg.accumulation.steps > MICRO_BATCHES and len(fullest_rank.simulated_ranks(cfg)) == 1


def _first_look(
    cfg: Config, folder: str, capacity_bytes: int, listener: Listener, build_data: Callable[..., Data]
) -> None:
    """Simulate what of a step on the longest rows needs most memory, in half of the time of two steps of two
    micro-batches: see `_steps_of_first_look`."""
    fewer = copy.copy(cfg)
    fewer.accumulation = replace(cfg.accumulation, steps=MICRO_BATCHES)
    (rank,) = fullest_rank.simulated_ranks(cfg)
    without_time = replace(listener, first=lambda events, _: listener.first(events, None))
    _simulate(
        fewer,
        rank,
        folder,
        capacity_bytes=capacity_bytes,
        listener=without_time,
        build_data=build_data,
        first_look=True,
    )


def _simulate(
    cfg: Config,
    rank: int,
    folder: str,
    *,
    capacity_bytes: int = UNLIMITED,
    record_origins: bool = False,
    draw_lengths: bool = False,
    listener: Listener = NOBODY,
    build_data: Callable[..., Data] | None = None,
    first_look: bool = False,
) -> SimulatedStep:
    """`simulate_step` of one rank of a configuration that is not compiled.

    build_data: see `setup.build`. first_look: see `_first_look`.
    """
    gpu = cfg.gpu if cfg.target.gpu else None
    fake = FakeDevice(gpu.kernel_rules, gpu.sm_count) if gpu else FakeDevice(None)
    with fake, fake_ranks.libraries_of(cfg, fake), fake_ranks.rank_of(cfg, fake, rank):
        listener.show("the rows and the model")
        if not isinstance(build_data, _DataOnce):
            build_data = _DataOnce(build_data or dataset.build_data)
        make_arguments = functools.partial(fake_ranks.arguments_for, device=fake.device)
        training = setup.build(cfg, folder, make_arguments, functools.partial(_fake_model, fake), build_data)
        args, rows, model, loop = training.args, training.data, training.model, training.loop
        parameter_count = quantized.count(model)
        built = stored.built(cfg, model)
        training.warnings.extend(_played_mode(cfg, loop))
        training.warnings.extend(fallbacks.notes(unwrap.base_model(training.model)))
        trace = _trace_of(cfg, training, fake, record_origins)
        even = rows.collate is collate.stack
        split = pipeline.of(model)
        largest = data_loader.largest_step(rows, args)
        steps = min(args.gradient_accumulation_steps, len(largest))
        enough = simulated_micro_batches(cfg, steps) if even else steps
        held = []
        if even:  # shorter micro-batches that are not run are not held as if they were as long as the first
            held = _held_by_others(model, largest, steps - enough)
        listener.show("two steps on the longest rows")
        if first_look and split is None:
            tokens = _steps_of_first_look(training, trace, enough)
        else:
            tokens = _two_steps(training, trace, enough, held)
        del held
        events = trace.allocator_events() if gpu is not None and capacity_bytes else []
        keeps = stored.after_steps(cfg, built, model, trace.ledger.optimizer, trace, rows)
        tally = _tally_of_mode(cfg, loop, _step_tally(cfg, trace, steps, enough), steps)
        listener.first(events, tally)
        later = BeyondTheStep()
        if draw_lengths:
            later = _beyond_the_step(cfg, training, fake, trace, events, steps, capacity_bytes, build_data, listener)
        if later.evaluation is not None:
            keeps = stored.with_evaluation(keeps, later.evaluation.events, later.evaluation.begin)
    batch = args.train_batch_size * rows.ranks
    samples = min(batch * steps, len(rows.train))  # a step larger than the data has all samples
    scale = samples / min(batch * enough, len(rows.train))  # from the micro-batches that were run to the whole step
    simulated = SimulatedStep(
        parts=trace.ledger.parts(),
        parameter_count=parameter_count,
        samples=samples if even else round(samples * samples_in(rows.train).mean()),
        tokens=round(tokens * scale),
        micro_batches=steps,
        model_flops=None if trace.ledger.model_flops is None else round(trace.ledger.model_flops * scale),
        events=events,
        paged_bytes=trace.paged_bytes,
        tally=tally,
        model=training.description,
        warnings=training.warnings + list(fake.warnings) + _too_few(samples, batch * cfg.accumulation.steps),
        trace=trace,
        first_steps=later.first_steps,
        drawn=later.drawn,
        evaluation=later.evaluation,
        schedule=later.schedule,
        kept=keeps,
        rank=rank,
        own_layers=0 if split is None else split.layers,
    )
    if gpu is None or not capacity_bytes:
        return simulated
    return within(simulated, capacity_bytes, gpu.memory_bytes)


def _trace_of(cfg: Config, training: setup.Training, fake: FakeDevice, record_origins: bool) -> OpTrace:
    """What follows the steps of a training; also on the host, where a GPU's step or activations are there."""
    optimizer = training.loop.optimizer
    trace = OpTrace(fake, training.model, getattr(optimizer, "optimizer", optimizer), record_origins)
    if cfg.target.gpu is not None and (cfg.parallelism.steps_on_host or cfg.checkpointing.kind == "offload"):
        trace.host_log = StorageLog("cpu")
    return trace


def _held_by_others(model: Any, loader: Any, count: int) -> list[torch.Tensor]:
    """What `count` micro-batches that are not run keep on the device: their inputs, and the messages of a pipeline."""
    held = _input_tensors(loader, count)
    split = pipeline.of(model)
    if split is not None and held:
        B, T = held[0].shape
        held += split.buffers(B, T, count)
    return held


@dataclass
class BeyondTheStep:
    """What is simulated behind the step on the longest rows: other steps, the evaluation, the whole training."""

    first_steps: FirstSteps | None = None
    drawn: DrawnSteps | None = None
    schedule: RunSchedule | None = None
    evaluation: evaluation_memory.EvaluationRequests | None = None


def _beyond_the_step(
    cfg: Config,
    training: setup.Training,
    fake: FakeDevice,
    trace: OpTrace,
    events: list[allocator.Request],
    steps: int,
    capacity_bytes: int,
    timed_data: _DataOnce,
    listener: Listener,
) -> BeyondTheStep:
    """Simulate steps on rows of other lengths, where there are any, and the evaluation.

    trace, events: of the step on the longest rows. steps: micro-batches of an optimizer step.
    """
    rows, loop, optimizer = training.data, training.loop, trace.ledger.optimizer
    later = BeyondTheStep()
    if cfg.target.gpu is not None and rows.collate is not collate.stack:
        settings = limits_of(capacity_bytes, cfg.gpu.memory_bytes).settings
        of_mode = functools.partial(_tally_of_mode, cfg, loop)
        later.first_steps, later.drawn = uneven_lengths.draw(
            loop, fake, optimizer, steps, events, settings, of_mode, listener.show
        )
    batch = training.args.train_batch_size
    longest = data_loader.longest(rows, rows.train, batch * rows.ranks * steps)
    work = [run_schedule.work_of_rows(rows, longest, batch)]
    if later.first_steps is not None:
        work += later.first_steps.work
    later.schedule = run_schedule.of(cfg, training, work, timed_data.seconds)
    listener.show("the evaluation")
    later.evaluation = evaluation_memory.requests(cfg, training, fake, optimizer)
    return later


def simulated_micro_batches(cfg: Config, steps: int) -> int:
    """How many of the equal micro-batches of an optimizer step are run.

    Those of a pipeline are under way together: of as many as are enough for all to be under way, and for a rank to have
    gone over to a forward and a backward pass in turn.
    """
    stages = cfg.parallelism.stage_ranks
    if cfg.parallelism.schedule == "gpipe" and stages > 1:  # all are under way
        return steps
    if cfg.parallelism.chunks:  # 2 (p - 1) + (v - 1) p passes come first, of p x v parts
        return min(steps, 3 * stages)
    if stages > 1:
        return min(steps, stages + 2)
    if collectives.is_distributed():  # the last alone sends the gradients
        return min(steps, MICRO_BATCHES + 1)
    return min(steps, MICRO_BATCHES)


def _step_tally(cfg: Config, trace: OpTrace, steps: int, enough: int) -> Tally:
    """The operations of a step with all its micro-batches, of which `enough` were run."""
    own = cfg.parallelism
    if not own.stages:
        return trace.step_tally(steps)
    # A pass of a pipeline has what runs until the next forward pass: the last has the backward passes that are left.
    chunks = own.parts_of_rank
    alike = own.stages * chunks if own.chunks else 1
    return trace.step_tally_of(trace.passes[-1 - alike : -1], (steps - enough) * chunks // alike)


def _played_mode(cfg: Config, loop: setup.Loop) -> list[str]:
    """Let the loop's step be that of DataParallel or DeepSpeed, which do not run here. Returns warnings."""
    if cfg.parallelism.kind == "dp":
        loop.model = Replicas(loop.model, cfg.parallelism.world_size)  # type: ignore[assignment]
    return zero_ranks.attach(cfg, loop) if cfg.parallelism.kind == "zero" else []


def _tally_of_mode(cfg: Config, loop: setup.Loop, tally: Tally, micro_batches: int) -> Tally:
    """The operations of a step with those that such a mode adds, and how they go with what ranks send."""
    if isinstance(loop.model, Replicas):
        loop.model.add_transfers(tally, micro_batches)
    share = pipeline_rules.idle_share(cfg)  # of the time in which a rank could compute
    tally.waits, tally.idle = cfg.parallelism.waits, share / (1 - share)  # the latter beside its own passes
    sent_and_awaited = any(links.is_all_to_all(operation) for operation, _ in tally.operations())
    tally.shares_experts = sent_and_awaited and not cfg.parallelism.context  # which sends the heads of rows instead
    own = cfg.parallelism
    if own.kind == "mesh":
        groups = {(own.tensor_ranks, 1), (own.stage_ranks, own.world_size // own.stage_ranks)}
        tally.awaited_groups = frozenset(groups)
    return tally


def _too_few(samples: int, asked: int) -> list[str]:
    """A warning where a step cannot have the samples that were asked for."""
    if samples >= asked:
        return []
    return [
        f"a step is to have {asked:,} samples, and there are {samples:,} to train on: the figures are of a step on "
        "those. Give it more data (data.samples), or a smaller batch."
    ]


def within(simulated: SimulatedStep, capacity_bytes: int, gpu_bytes: int) -> SimulatedStep:
    """A simulated step with what it asks of the allocator of a GPU. capacity_bytes: see `simulate_step`."""
    limits = limits_of(capacity_bytes, gpu_bytes)
    demand = allocator.replay(simulated.events, limits.capacity_bytes, limits.settings)
    lengths = simulated.drawn and uneven_lengths.replay(simulated.drawn, limits.capacity_bytes, limits.settings)
    return replace(simulated, demand=demand, lengths=lengths, unknown_settings=limits.warnings)


def _two_steps(training: setup.Training, trace: OpTrace, enough: int, held: list[torch.Tensor]) -> int:
    """Run two optimizer steps on the longest rows. enough: micro-batches of each; the first, too, leaves the allocator
    free blocks between what it keeps. held: what those that are not run keep on the device. Returns the tokens of the
    second."""
    fake_ranks.note_first_broadcast(training.loop.model, trace)
    for tensor in held:
        trace.hold(tensor)
    _step(training, trace, enough)
    return _step(training, trace, enough)


def _steps_of_first_look(training: setup.Training, trace: OpTrace, enough: int) -> int:
    """Run one micro-batch, after which the optimizer creates its states, and one beside these states and the gradients
    of the micro-batches before it. Where ranks share gradients out, the second step has `enough` micro-batches instead.
    Returns the tokens of the second."""
    fake_ranks.note_first_broadcast(training.loop.model, trace)
    _step(training, trace, 1)
    if collectives.is_distributed():
        return _step(training, trace, enough)
    for weight in training.model.parameters():
        if weight.requires_grad:
            weight.grad = torch.empty_like(weight)
    return _step(training, trace, 1)


def _step(training: setup.Training, trace: OpTrace, micro_batches: int) -> int:
    """Run an optimizer step on the longest rows. Returns its tokens."""
    training.args.gradient_accumulation_steps = micro_batches
    tokens = training.loop.one_more_step(trace)
    fake_ranks.rebuild_buckets(training.loop.model, trace.log)
    return tokens


def _fake_model(fake: FakeDevice, cfg: Config, build_model: setup.BuildModel) -> PreTrainedModel:
    """The model on the fake device, with no weights initialised or read; this rank's shards under FSDP."""
    with fake.building():
        model = build_model(weights=False)
        model.tie_weights()  # part of the initialisation that `building` leaves out
    if cfg.parallelism.kind == "mesh":
        mesh.split(cfg, model, fake.device.type)
        return model
    if cfg.parallelism.stages:
        pipeline.split(model, cfg.parallelism)
    if cfg.parallelism.sharded:
        fsdp.shard(cfg, model, fake.device.type)
    return model


def _input_tensors(loader: Any, count: int) -> list[torch.Tensor]:
    """The tensors that `count` micro-batches which are not run keep on the device: their inputs, which are there before
    the step begins, and their losses."""
    if not count:
        return []
    inputs = list(next(iter(loader)).values())
    losses = [torch.empty((), device=inputs[0].device) for _ in range(count)]
    return [torch.empty_like(tensor) for tensor in inputs for _ in range(count)] + losses
