"""Predictions for a deep model from simulated steps of two shallow ones: seconds, and a lower bound on memory.

The layers of a model are alike, so the seconds of a step grow by the same amount with each layer, and so do the bytes
that are alive at any point of the step. The peak over all points is the largest of several straight lines; a line
through two of its values is never above it at larger depths. What the optimizer adds does not depend on the batch, and
the forward and backward passes do not depend on the optimizer, so a few extrapolations cover many configurations. DDP's
buckets are taken to grow alike, too; what is chosen is estimated whole.

FSDP that frees gathered weights after the forward pass is not extrapolated itself, because it gathers weights ahead of
their use, and its memory is no straight line. Its prediction is derived from the strategy that keeps the weights
(`resharding`).
"""

import copy
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

from transformers import PreTrainedModel

from legroom import config
from legroom.config import Config
from legroom.data import dataset
from legroom.data.dataset import Data, Head
from legroom.estimator.speed import roofline
from legroom.estimator.speed.operations import Tally
from legroom.foresight import simulation
from legroom.foresight.simulation import SimulatedStep
from legroom.options import model_families
from legroom.parallelism import fsdp
from legroom.ranks import rank_info

DEPTHS = (1, 2)  # layers of the two models that are simulated; of a pipeline, of each of its parts
DEPTHS_SHARDED = (2, 3)  # with FSDP: the gradients that one layer sends are alive while the next one's are computed
PASSES = ("forward", "backward")
TIMES = ("device_seconds", "host_seconds", "link_seconds", "taken_seconds", "collectives")
KEPT_DATA = 4  # of several modes of parallelism
# Strategy that frees gathered weights after the forward pass -> the same strategy, keeping them until the backward pass
STAYS_GATHERED = {"full_shard": "shard_grad_op", "hybrid_shard": "hybrid_shard_zero2"}


@dataclass(frozen=True)
class Extrapolation:
    """One optimizer step: the forward and the backward passes of all micro-batches, and the rest (step_*).

    pass_bytes: the peak until the end of the last pass, without the optimizer's states. step_bytes: the peak after
    that, with them. gathered_bytes: the whole weights of the units that FSDP gathers, but for those outside all units.
    micro_batches: of the step. idle: see `Tally`. *_seconds: of the device, the host and the link, which overlap.
    *_taken_seconds: of the device, by the multiprocessors that collectives run on. *_collectives: their number.
    """

    pass_bytes: float
    step_bytes: float
    states_bytes: float
    gathered_bytes: float
    micro_batches: float
    idle: float
    forward_device_seconds: float
    forward_host_seconds: float
    forward_link_seconds: float
    forward_taken_seconds: float
    forward_collectives: float
    backward_device_seconds: float
    backward_host_seconds: float
    backward_link_seconds: float
    backward_taken_seconds: float
    backward_collectives: float
    step_device_seconds: float
    step_host_seconds: float
    step_link_seconds: float
    step_taken_seconds: float
    step_collectives: float

    @property
    def passes_seconds(self) -> float:
        """Of the device."""
        return self.forward_device_seconds + self.backward_device_seconds

    def of(self, phase: str) -> list[float]:
        """TIMES of a phase."""
        return [getattr(self, f"{phase}_{name}") for name in TIMES]


def least_bytes(passes: Extrapolation, step: Extrapolation) -> float:
    """A lower bound on the memory of the passes of one extrapolation with the optimizer of another."""
    return max(passes.pass_bytes + step.states_bytes, step.step_bytes)


def step_seconds(passes: Extrapolation, step: Extrapolation, light: Extrapolation | None = None) -> float:
    """The seconds of a step with the passes of one extrapolation and the optimizer of another.

    light: like `step`, with the optimizer of `passes`. Then the seconds of `passes` outside its passes count too, and
    `step` and `light` give only the difference between the two optimizers.
    """
    light = light or passes
    times = [passes.of(phase) for phase in PASSES]
    times.append([own + its - less for own, its, less in zip(passes.of("step"), step.of("step"), light.of("step"))])
    phases = [roofline.Phase(device, link, taken, sent) for device, _, link, taken, sent in times]
    host_seconds = sum(host for _, host, *_ in times)
    device_seconds = sum(phase.device_seconds for phase in phases)
    return roofline.overlapped(phases, host_seconds) * (1 + passes.idle * passes.passes_seconds / device_seconds)


def without_resharding(cfg: Config) -> Config:
    """The configuration that keeps gathered weights until the backward pass; `cfg` itself if it does so."""
    if cfg.parallelism.strategy not in STAYS_GATHERED:
        return cfg
    gathered = copy.deepcopy(cfg)
    gathered.parallelism.strategy = STAYS_GATHERED[cfg.parallelism.strategy]
    return gathered


def resharding(gathered: Extrapolation, small: Extrapolation, small_gathered: Extrapolation) -> Extrapolation:
    """The extrapolation of a strategy that frees gathered weights, from that of the strategy that keeps them.

    It computes the same and gathers more: for each micro-batch, whatever its size, as much as `small` (frees) does more
    than `small_gathered` (keeps). Its memory at any point is smaller by at most all gathered weights.
    """
    micro_batches = gathered.micro_batches / small.micro_batches
    more = {}
    for name in (f"{phase}_{name}" for phase in PASSES for name in TIMES):
        difference = getattr(small, name) - getattr(small_gathered, name)
        more[name] = getattr(gathered, name) + micro_batches * difference
    return replace(gathered, pass_bytes=gathered.pass_bytes - gathered.gathered_bytes, **more)


def extrapolate(cfg: Config, precisions: list[str], folder: str) -> list[Extrapolation]:
    """An extrapolation for each of the precisions, which run the same operations at different speeds.

    A model with loaded weights has the depth of the weights, and is simulated whole; so is a shallow model, and one
    whose layers do not repeat (see `_has_layers_of_its_own`). Where only every n-th layer is checkpointed, or sees all
    tokens, what grows alike is a group of n layers, and the depths differ by one such group for each part of a
    pipeline. Which of DeepSpeed's ranks is the fullest, and what it fetches ahead, is no straight line: simulated whole
    too.
    """
    layers, repeats = cfg.model.layers, model_families.PERIODS.get(cfg.model.family, 1)
    parts = cfg.parallelism.stage_ranks * cfg.parallelism.parts_of_rank
    period = math.lcm(cfg.checkpointing.every_n_layers or 1, repeats) * parts
    depths: tuple[int | None, ...] = (layers,)
    if not cfg.model.pretrained and cfg.parallelism.kind != "zero" and not _has_layers_of_its_own(cfg):
        first = (DEPTHS_SHARDED if cfg.parallelism.sharded else DEPTHS)[0] * parts
        first += (layers - first) % period
        if layers > first + period:
            depths = (first, first + period)
    simulated = []  # one entry for each depth
    for depth in depths:
        shallow = copy.deepcopy(cfg)
        shallow.model.layers = depth
        simulated.append(_figures(shallow, precisions, folder))
    if len(depths) == 1:
        return [_of_job(map(_largest, ranks)) for ranks in simulated[0]]
    more = (layers - depths[0]) // period
    return [
        _of_job(_largest([low + more * (high - low) for low, high in zip(*rank)]) for rank in zip(*pair))
        for pair in zip(*simulated)
    ]


def _has_layers_of_its_own(cfg: Config) -> bool:
    """Whether the layers are listed one by one, or several of the first differ from the rest, as in DeepSeek V3."""
    config = cfg.model.config or {}
    return "layer_types" in config or (config.get("first_k_dense_replace") or 0) > 1


def _figures(cfg: Config, precisions: list[str], folder: str) -> list[list[list[float]]]:
    """Simulate a configuration as it is: what `_largest` takes for each precision and simulated rank."""
    ranks = simulation.simulate_ranks(cfg.as_written(), folder, build_data=build_data)
    return [[_sizes(cfg, rank) + _times(cfg, rank.tally, name) for rank in ranks] for name in precisions]


def _sizes(cfg: Config, simulated: SimulatedStep) -> list[float]:
    model = simulated.trace.model
    states = simulated.parts["largest_bytes"]["optimizer"] - simulated.paged_bytes
    *passes, step = _peaks(simulated)
    workspaces = sum(workspace.bytes for workspace in simulated.trace.workspaces if workspace.kept)
    return [
        *(part - states + workspaces for part in passes),
        step + workspaces,
        states,
        _gathered_bytes(cfg, cast(PreTrainedModel, model)),
        simulated.micro_batches,
        simulated.tally.idle,
    ]


def _times(cfg: Config, tally: Tally, precision: str) -> list[float]:
    """TIMES of the forward and the backward passes, and of the rest."""
    found = []
    if cfg.precision.copies:
        precision = cfg.precision.timed_as
    for phase in (*PASSES, "step"):
        seen = roofline.predict(_part(tally, phase), cfg.gpu, precision, cfg.parallelism.world_size)
        found += [getattr(seen, name) for name in TIMES]
    return found


def _peaks(simulated: SimulatedStep) -> tuple[int, int, int, int]:
    """The largest number of bytes alive on the device in the last step: in forward passes, between a forward and its
    backward pass, in backward passes, and after the last pass.

    Each for itself grows nearly as a straight line: in a model of two layers the peak is where the gradients of the
    embeddings are, and in one of many where the backward pass begins.
    """
    most: dict[str, int] = dict.fromkeys((*PASSES, "between", "step"), 0)
    log, before = simulated.trace.log, ""
    live = -simulated.paged_bytes
    for index, (entry, sign) in enumerate(log.events):
        if index >= log.step_start and sign > 0:
            phase = entry.phase if entry.phase in PASSES else "step"
            if (before, phase) == PASSES:
                most["between"] = max(most["between"], live)
            if phase != "step" and most["step"]:  # what counted for the step was between two passes
                most[phase], most["step"] = max(most[phase], most["step"]), 0
            most[phase], before = max(most[phase], live + entry.bytes), phase
        live += sign * entry.bytes
    return most["forward"], most["between"], most["backward"], most["step"]


def _largest(values: list[float]) -> Extrapolation:
    """values: the fields of an Extrapolation, with the first three of `_peaks` in the place of pass_bytes."""
    return Extrapolation(max(values[:3]), *values[3:])


def _of_job(ranks: Iterable[Extrapolation]) -> Extrapolation:
    """That of the rank that computes longest, with the memory of the fullest. So that no other optimizer's bytes make
    it more than any rank needs, the states are those of the rank that has fewest."""
    seen = list(ranks)
    sizes = {key: max(getattr(each, key) for each in seen) for key in ("pass_bytes", "step_bytes")}
    sizes["states_bytes"] = min(each.states_bytes for each in seen)
    return replace(max(seen, key=lambda each: each.passes_seconds), **sizes)


def _gathered_bytes(cfg: Config, network: PreTrainedModel) -> int:
    """The whole weights of the units that FSDP gathers one after the other, in the dtype in which they are gathered."""
    if not cfg.parallelism.sharded:
        return 0
    half = 2 if cfg.precision.kind in ("fp16", "bf16") else None  # fsdp.shard: MixedPrecisionPolicy
    return sum(
        weight.numel() * (half or weight.element_size())
        for unit in fsdp.units(network, cfg.parallelism.wrap, cfg.parallelism.wrap_min_parameters)
        for weight in unit.parameters()
    )


def _part(tally: Tally, phase: str) -> Tally:
    """The operations of a phase."""
    counts = {phase: tally.counts[phase]} if phase in tally.counts else {}
    return Tally(counts, Counter({phase: tally.calls[phase]}), waits=tally.waits)


_BUILT: dict[str, Data] = {}  # what a worker process has built for all configurations that share it


def build_data(cfg: Config, task: str, vocab: int, head: Head = None, last_id: int | None = None) -> Data:
    """`dataset.build_data`, or what it has returned for a configuration that differs in other things."""
    values = config.to_dict(cfg)
    del values["model"]["layers"], values["model"]["attention"]  # which extrapolations change
    parts = [values[section] for section in ("data", "eval", "model")]
    share = rank_info.data_share(cfg.parallelism)
    known = [*parts, cfg.train.seed, share, task, vocab, head and dict(head), last_id]
    key = json.dumps(known, default=str)
    if key not in _BUILT:
        if len(_BUILT) >= KEPT_DATA:
            _BUILT.clear()
        _BUILT[key] = dataset.build_data(cfg, task, vocab, head, last_id)
    return replace(_BUILT[key], warnings=list(_BUILT[key].warnings))
