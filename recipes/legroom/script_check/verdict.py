"""What was recorded of a script, judged for a GPU: whether it fits, how long a step takes, what the memory is.

Memory is torch's own account on the emulated device. Time follows from the operations, as in an estimate.
"""

import dataclasses
from collections import Counter
from typing import Any

from legroom import units
from legroom.config import Gpu
from legroom.estimator import room
from legroom.estimator.ledger.kinds import ACTIVATION, OTHER
from legroom.estimator.ledger.timeline import timeline
from legroom.estimator.speed import anatomy
from legroom.estimator.step_estimate import SeenStep, StepEstimate, estimate_of, precision_like
from legroom.script_check.recording import Recording
from legroom.units import MIB

NOTICED_KERNELS = 0.05  # of those of a step; fewer that no operation shows are torch's own


def judge(recording: Recording, gpu: Gpu, margin: float, ranks: int, ran_out: bool) -> StepEstimate:
    """The figures of a recorded script on a GPU.

    margin: what 'fits' keeps free, as a share. ranks: that train together. ran_out: the device had the GPU's memory,
    and that was not enough; then the recording is of a device with more.

    Raises Refusal where the GPU lacks a dtype that the step computes in.
    """
    phases = _needed_phases(recording.recorded["phases"])
    reserved = max(phase["reserved"] for phase in phases)
    taken = _taken(recording, reserved)
    left = room.usable_bytes(gpu, gpu.nccl_bytes if ranks > 1 else 0, None) - taken
    if ran_out and left >= 0:
        left = -1  # fragments: each block would fit, and not all of them beside each other
    seen = SeenStep(
        trace=recording,
        tally=recording.tally,
        precision=precision_of(recording),
        is_mostly_frozen=_is_mostly_frozen(recording),
        parts=recording.parts(),
        peak_phase=recording.peak_phase,
        reserved_bytes=reserved,
        allocated_bytes=max(phase["allocated"] for phase in phases),
        taken_bytes=taken,
        left_bytes=left,
        model_flops=recording.model_flops,
        notes=_notes(recording, fits=left >= 0),
    )
    return estimate_of(seen, gpu, margin, ranks)


def _needed_phases(phases: list[dict[str, int]]) -> list[dict[str, int]]:
    """The phases whose peaks the script needs: those in which the device has not run out of memory. In the others it
    has tried more than it went on with."""
    needed = []
    ooms = 0
    for phase in phases:
        if phase["ooms"] == ooms:
            needed.append(phase)
        ooms = phase["ooms"]
    return needed or phases[-1:]


def _taken(recording: Recording, reserved: int) -> int:
    """The bytes that all of the process has taken on the device, of which torch has `reserved`. bitsandbytes and others
    allocate past torch, too."""
    last = recording.recorded["phases"][-1]
    counted = recording.recorded["device"]
    if last["ooms"]:  # the device's own peak is that of the attempt which failed
        return reserved + max(0, counted["used_bytes"] - last["reserved_now"])
    return max(counted["peak_bytes"], reserved)


def page(recording: Recording, gpu: Gpu, ranks: int) -> dict[str, Any]:
    """What the page of a script shows of its step: every tensor, and the operations."""
    details = anatomy.predicted(recording.tally, gpu, precision_of(recording), ranks)
    return {
        "rank": 0,
        "timeline": timeline(recording.log, recording.origins),
        "operations": details.details,
        "summary": dataclasses.asdict(details.summary),
    }


def precision_of(recording: Recording) -> str:
    """The option of `precision` that is like the step."""
    weights = recording.weights
    return precision_like((recording.tally,), weights.trained, weights.trained_in_fp32, recording.recorded["tf32"])


def _is_mostly_frozen(recording: Recording) -> bool:
    """Whether most of the weights are not trained, by the bytes that they could take in 16 bits."""
    return recording.weights.stored_bytes > 8 * recording.weights.trained


def _notes(recording: Recording, fits: bool) -> list[str]:
    notes = []
    recorded = recording.recorded
    phases = _needed_phases(recorded["phases"])
    first = phases[0]
    last = phases[-1]
    if first["reserved"] > last["reserved"] and fits:
        difference = units.size(first["reserved"] - last["reserved"])
        notes.append(f"loading and the first step reserve {difference} more than a later step.")
    caught = last["ooms"]
    if caught:
        times = "once" if caught == 1 else f"{caught} times"
        notes.append(
            f"the script ran out of memory {times}, and went on: the figures are those of what it goes on with."
        )
    if recorded["cards_used"] > 1:
        notes.append(
            f"the script uses {recorded['cards_used']} cards: the figures are those of number {recorded['card']}, "
            "on which most is reserved; the time is that of all operations, one after the other."
        )
    unseen_kernels = recording.unseen_kernels
    if unseen_kernels > NOTICED_KERNELS * recorded["launches"]["all"]:
        notes.append(
            f"{unseen_kernels:,} of the {recorded['launches']['all']:,} kernels of a step are started by compiled "
            "code or by Triton: their launches are in the time, and not their work; it is too short."
        )
    grown = _grown(recording)
    if grown > MIB:
        notes.append(
            f"memory grew by {units.size(grown)} in the last step: what forward passes have made is kept on the GPU. "
            "In a list, that is so in every step."
        )
    unseen = last["allocated"] - sum(recording.parts().values())
    if unseen > max(64 * MIB, 0.02 * last["allocated"]):
        notes.append(
            f"{units.size(unseen)} of the allocated memory is not seen as tensors (compiled code, workspaces): "
            "it is in the verdict, and not among the parts."
        )
    return notes


def _grown(recording: Recording) -> int:
    """The bytes that the forward passes of the last step and of those before have left alive, where memory grows by
    them. A loss that a variable holds is there once; weights and states are no pass's."""
    events = recording.log.events
    start = recording.log.step_start
    events_of = Counter(id(entry) for entry, _ in events)
    left_before = Counter[int]()  # bytes of a block -> blocks that are never freed
    left_by_step = Counter[int]()
    for index, (entry, _) in enumerate(events):
        is_left = events_of[id(entry)] == 1 and not entry.preexisting
        if is_left and entry.phase == "forward" and entry.kind in (ACTIVATION, OTHER):
            if index >= start:
                left_by_step[entry.bytes] += 1
            else:
                left_before[entry.bytes] += 1
    change = sum(sign * entry.bytes for entry, sign in events[start:])
    return min(change, sum((left_before & left_by_step).elements()))
