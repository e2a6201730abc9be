"""`estimate_step`: what a training step that a user wrote would take on a GPU. Imports torch when it is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom import units
from legroom.config import Gpu
from legroom.errors import Refusal
from legroom.estimator import cards, room, verdict
from legroom.estimator.verdict import FITS, TIGHT
from legroom.units import PARTS

if TYPE_CHECKING:
    from legroom.estimator.explain import Traced
    from legroom.estimator.fake_gpu.op_trace import OpTrace
    from legroom.estimator.ledger.storage_log import StorageLog
    from legroom.estimator.speed.operations import Tally
    from legroom.estimator.user_step import SimulatedUserStep

MARGIN = 0.03  # conf/config.yaml, estimate.margin


@dataclass(frozen=True)
class StepEstimate:
    """What one step is predicted to take on a GPU. Bytes are integers, times are seconds.

    verdict: "fits", "tight" (less than kept_bytes stay free) or "does not fit".
    left_bytes: device memory that stays free; negative: how much is missing. kept_bytes: what "fits" keeps free.
    device_used_bytes: of the whole device: reserved_bytes by torch's allocator, and context_bytes by CUDA.
    allocated_bytes: the peak of `torch.cuda.memory_allocated`. tensor_bytes: of live tensors, the sum of parts.
    parts: parameters, gradients, optimizer, activations and other, at that peak. peak_phase: forward, backward or step.
    timeline: (phase, bytes of live tensors) after each allocation and free of the step, in order.
    largest: the largest tensors at the peak, with bytes, part, made_by and count.
    step_seconds: the predicted time; nine of ten steps lie between step_seconds_low and step_seconds_high. In it
        device_seconds and host_seconds overlap. bound_by: what it waits for. model_flops: None: not known.
    notes: what was assumed, a line each.
    """

    device_name: str
    verdict: str
    left_bytes: int
    kept_bytes: int
    capacity_bytes: int
    device_used_bytes: int
    context_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    tensor_bytes: int
    parts: dict[str, int]
    peak_phase: str | None
    timeline: tuple[tuple[str, int], ...] = field(repr=False)
    largest: tuple[dict[str, Any], ...] = field(repr=False)
    step_seconds: float
    step_seconds_low: float
    step_seconds_high: float
    bound_by: str
    device_seconds: float
    host_seconds: float
    model_flops: int | None
    notes: tuple[str, ...]
    _trace: OpTrace | None = field(repr=False, compare=False)

    @property
    def fits(self) -> bool:
        """Whether the step fits with the margin."""
        return self.verdict == FITS

    def picture(self, path: str | Path, title: str = "") -> None:
        """Draw the memory over the step as a PNG. Raises Refusal for the estimate of a script, whose page has the
        picture."""
        if self._trace is None:
            raise Refusal("the tensors of a script are gone with its process. `legroom check` draws them on its page.")
        from legroom.estimator import explain

        explain.picture(self._trace, Path(path), title or self.device_name, self.capacity_bytes - self.context_bytes)

    def _step_text(self) -> str:
        """Its time and interval with the two digits that are known, in milliseconds or, from one on, seconds."""
        name = "ms"
        unit = 1e-3
        if self.step_seconds >= 1:
            name = "s"
            unit = 1.0
        low = units.two_digits(self.step_seconds_low / unit)
        high = units.two_digits(self.step_seconds_high / unit)
        return f"{units.two_digits(self.step_seconds / unit)} {name} ({low} to {high})"

    def _answer(self) -> str:
        """Whether it fits, with what it needs; where it does not, what is missing."""
        answer = (
            f"{self.verdict} on {self.device_name}: {units.size(self.device_used_bytes)} of "
            f"{units.size(self.capacity_bytes)}, {units.size(abs(self.left_bytes))} "
        )
        if self.left_bytes < 0:
            return f"{answer}are missing"
        answer += "stay free"
        if self.left_bytes < self.kept_bytes:
            answer += f", and {units.size(self.kept_bytes)} should, as allocations vary"
        return answer

    def __str__(self) -> str:
        peak = f" ({self.peak_phase})" if self.peak_phase else ""
        parts = units.in_one([(name, self.parts[part]) for name, part in PARTS])
        lines = [
            self._answer(),
            f"  tensors {units.size(self.tensor_bytes)} at the peak{peak}: {parts}",
            f"  torch's allocator takes {units.size(self.reserved_bytes)} for them "
            f"({units.size(self.allocated_bytes)} in use), CUDA the rest",
            f"  step {self._step_text()}, bound by {self.bound_by}",
        ]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def estimate_step(
    step: Callable[[Any, Any, Any], Any],
    module: Any = None,
    optimizer: Any = None,
    inputs: Any = None,
    *,
    make: Callable[[], tuple[Any, Any, Any]] | None = None,
    gpu: str | Mapping[str, Any] = "auto",
    margin: float = MARGIN,
    memory_limit_gib: float | None = None,
) -> StepEstimate:
    """Predict memory and time of a training step on a GPU that need not be there. Nothing is computed.

    step: called as `step(module, optimizer, inputs)`, twice: one whole optimizer step with its forward and backward
        passes. What it returns is alive until it returns again, as in a loop.
    module: a torch.nn.Module, or a list, tuple or dictionary of several. optimizer: a torch.optim.Optimizer, several,
        or None. inputs: anything with tensors in it. They are copied to the fake GPU without their data.
    make: instead of these three, a function without arguments that returns them. It runs on the fake GPU: tensors are
        made there, no weight is initialised, and nothing takes memory, whatever the size of the model.
    gpu: an option of conf/gpu ("rtx4090_24gb"), "auto" for the installed one, or a mapping with its keys; with `name`
        of an option the mapping has only what differs from it.
    margin: what "fits" keeps free, as a share of the reserved memory. memory_limit_gib: of torch's allocator.

    Raises Refusal, with file and line, for a step that cannot be followed: one that decides by a tensor's value, or in
    which sizes depend on values.
    """
    if not callable(step) or hasattr(step, "parameters"):
        raise Refusal("the first argument must be the step: a function of the module, the optimizer and the inputs.")
    has_three = optimizer is not None or inputs is not None or module is not None
    if (make is None and module is None) or (make is not None and has_three):
        raise Refusal(
            "give either the module with its optimizer and inputs, or make=, a function that returns the three."
        )
    if not 0 <= margin < 1:
        raise Refusal(f"margin={margin}: it must be a share of the reserved memory, at least 0 and below 1.")
    if memory_limit_gib is not None and not memory_limit_gib > 0:
        raise Refusal(f"memory_limit_gib={memory_limit_gib}: it must be above 0, or None for no limit.")
    figures = cards.gpu_of(gpu)
    from legroom.estimator import user_step

    capacity = room.usable_bytes(figures, 0, memory_limit_gib)
    simulated = user_step.simulate(step, make, (module, optimizer, inputs), figures, capacity)
    return estimate_of(_of_user_step(simulated, capacity), figures, margin, op_trace=simulated.trace)


@dataclass(frozen=True)
class SeenStep:
    """A step as it was followed, on fake tensors or on the emulated device.

    trace: its storages with their origins. tally: its operations. precision: the option of `precision` that it is like.
    is_mostly_frozen: most of its weights are not trained. parts: bytes by part at the peak of live tensors.
    reserved_bytes, allocated_bytes: the peaks of torch's allocator. taken_bytes: of the device by all of the process,
    beside context and NCCL. left_bytes: of what the device has for it; negative: missing. notes: what was assumed.
    """

    trace: Traced
    tally: Tally
    precision: str
    is_mostly_frozen: bool
    parts: dict[str, int]
    peak_phase: str | None
    reserved_bytes: int
    allocated_bytes: int
    taken_bytes: int
    left_bytes: int
    model_flops: int | None
    notes: Sequence[str] = ()


def estimate_of(
    seen: SeenStep, gpu: Gpu, margin: float, ranks: int = 1, op_trace: OpTrace | None = None
) -> StepEstimate:
    """The figures of a step on a GPU.

    margin: what "fits" keeps free, as a share. ranks: that train together. op_trace: what a picture is drawn of.

    Raises Refusal where the GPU lacks a dtype that the step computes in.
    """
    from legroom.estimator import explain
    from legroom.estimator.speed import roofline

    judged = verdict.judge(seen.left_bytes, seen.taken_bytes, margin)
    context_bytes = room.context(gpu)[0]
    nccl_bytes = gpu.nccl_bytes if ranks > 1 else 0
    try:
        speed = roofline.predict(seen.tally, gpu, seen.precision, ranks, beside_frozen=seen.is_mostly_frozen)
    except ValueError as error:
        raise Refusal(f"{error} Choose another dtype or GPU.") from error
    return StepEstimate(
        device_name=gpu.device_name,
        verdict=judged.word,
        left_bytes=seen.left_bytes,
        kept_bytes=judged.kept_bytes,
        capacity_bytes=gpu.memory_bytes,
        device_used_bytes=context_bytes + nccl_bytes + seen.taken_bytes,
        context_bytes=context_bytes,
        reserved_bytes=seen.reserved_bytes,
        allocated_bytes=seen.allocated_bytes,
        tensor_bytes=sum(seen.parts.values()),
        parts=seen.parts,
        peak_phase=seen.peak_phase,
        timeline=_timeline(seen.trace.log),
        largest=tuple(explain.largest(seen.trace)),
        step_seconds=speed.step_seconds,
        step_seconds_low=speed.low_seconds,
        step_seconds_high=speed.high_seconds,
        bound_by=speed.bound_by,
        device_seconds=speed.device_seconds,
        host_seconds=speed.host_seconds,
        model_flops=seen.model_flops,
        notes=(*_notes(gpu, judged.word, nccl_bytes), *seen.notes, *speed.notes),
        _trace=op_trace,
    )


def _of_user_step(simulated: SimulatedUserStep, capacity_bytes: int) -> SeenStep:
    """A step on fake tensors. capacity_bytes: what torch's allocator has."""
    import torch

    trace = simulated.trace
    demand = simulated.demand
    parts = trace.ledger.parts()
    weights = list(trace.model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    precision = precision_like(
        (trace.tally, *trace.passes),
        trained=sum(weight.numel() for weight in trained),
        trained_in_fp32=sum(weight.numel() for weight in trained if weight.dtype == torch.float32),
        uses_tf32=torch.backends.cuda.matmul.fp32_precision == "tf32",
    )
    if demand.missing_bytes:
        left_bytes = -demand.missing_bytes
    else:
        left_bytes = min(capacity_bytes, demand.capacity_bytes) - demand.peak_reserved_bytes
    notes = list(simulated.warnings)
    if trace.paged_bytes:  # they fill what is free, and the rest of them stays on the host
        size = units.size(trace.paged_bytes)
        notes.insert(0, f"paged optimizer states ({size}) are outside the memory, and paging the time.")
    return SeenStep(
        trace=trace,
        tally=trace.step_tally(len(trace.passes)),
        precision=precision,
        is_mostly_frozen=sum(weight.numel() for weight in weights) > 2 * sum(weight.numel() for weight in trained),
        parts={part: parts[f"{part}_bytes"] for _, part in PARTS},
        peak_phase=parts["peak_phase"],
        reserved_bytes=demand.peak_reserved_bytes,
        allocated_bytes=demand.peak_allocated_bytes,
        taken_bytes=demand.peak_reserved_bytes,
        left_bytes=left_bytes,
        model_flops=trace.ledger.model_flops,
        notes=notes,
    )


def precision_like(tallies: Iterable[Tally], trained: int, trained_in_fp32: int, uses_tf32: bool) -> str:
    """The option of `precision` that is like a step: by the dtype of most of its arithmetic.

    tallies: of its operations. trained, trained_in_fp32: elements of weights; under autocast, where those are in fp32,
    the host's calls take longer. uses_tf32: products of fp32 may run in tf32, as torch is set.
    """
    from legroom.estimator.speed.operation_names import MATMUL

    flops: Counter[str] = Counter()
    for tally in tallies:
        for operation, times in tally.operations():
            if operation.kind == MATMUL:
                flops[operation.dtype] += operation.flops * times
    most = "fp32"
    if flops:
        most = flops.most_common(1)[0][0]
    if most in ("fp16", "bf16"):
        return most if 2 * trained_in_fp32 > trained else "bf16_pure"
    return "tf32" if uses_tf32 else "fp32"


def _timeline(log: StorageLog) -> tuple[tuple[str, int], ...]:
    points = []
    live_bytes = 0
    for entry, sign in log.events:
        live_bytes += sign * entry.bytes
        points.append((entry.phase, live_bytes))
    return tuple(points[log.step_start :])


def _notes(gpu: Gpu, word: str, nccl_bytes: int) -> list[str]:
    lines = []
    if word == TIGHT:
        lines.append("tight: less stays free than what a prediction may be wrong by; it may run out of memory.")
    context_bytes, is_measured = room.context(gpu)
    if not is_measured:
        lines.append(f"the context of {gpu.device_name} ({units.size(context_bytes)}) is assumed.")
    if nccl_bytes:
        lines.append(f"NCCL's buffers are counted as {units.size(nccl_bytes)} ({gpu.nccl_from}).")
    return lines
