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


def judge(made: Recording, gpu: Gpu, margin: float, ranks: int, ran_out: bool) -> StepEstimate:
    """The figures of a recorded script on a GPU.

    margin: what 'fits' keeps free, as a share. ranks: that train together. ran_out: the device had the GPU's memory,
    and that was not enough; then the recording is of a device with more.

    Raises Refusal where the GPU lacks a dtype that the step computes in.
    """
    needed = _needed_phases(made.found["phases"])
    reserved = max(each["reserved"] for each in needed)
    taken = _taken(made, reserved)
    left = room.usable_bytes(gpu, gpu.nccl_bytes if ranks > 1 else 0, None) - taken
    if ran_out and left >= 0:
        left = -1  # fragments: each block would fit, and not all of them beside each other
    seen = SeenStep(
        trace=made,
        tally=made.tally,
        precision=precision_of(made),
        is_mostly_frozen=_is_mostly_frozen(made),
        parts=made.parts(),
        peak_phase=made.peak_phase,
        reserved_bytes=reserved,
        allocated_bytes=max(each["allocated"] for each in needed),
        taken_bytes=taken,
        left_bytes=left,
        model_flops=made.model_flops,
        notes=_notes(made, fits=left >= 0),
    )
    return estimate_of(seen, gpu, margin, ranks)


def _needed_phases(phases: list[dict[str, int]]) -> list[dict[str, int]]:
    """The phases whose peaks the script needs: those in which the device has not run out of memory. In the others it
    has tried more than it went on with."""
    before = [0, *(each["ooms"] for each in phases)]
    calm = [each for each, ooms in zip(phases, before) if each["ooms"] == ooms]
    return calm or phases[-1:]


def _taken(made: Recording, reserved: int) -> int:
    """The bytes that all of the process has taken on the device, of which torch has `reserved`. bitsandbytes and others
    allocate past torch, too."""
    last, counted = made.found["phases"][-1], made.found["device"]
    if last["ooms"]:  # the device's own peak is that of the attempt which failed
        return reserved + max(0, counted["used_bytes"] - last["reserved_now"])
    return max(counted["peak_bytes"], reserved)


def page(made: Recording, gpu: Gpu, ranks: int) -> dict[str, Any]:
    """What the page of a script shows of its step: every tensor, and the operations."""
    details = anatomy.predicted(made.tally, gpu, precision_of(made), ranks)
    return {
        "rank": 0,
        "timeline": timeline(made.log, made.origins),
        "operations": details.details,
        "summary": dataclasses.asdict(details.summary),
    }


def precision_of(made: Recording) -> str:
    """The option of `precision` that is like the step."""
    weights = made.weights
    return precision_like((made.tally,), weights.trained, weights.trained_in_fp32, made.found["tf32"])


def _is_mostly_frozen(made: Recording) -> bool:
    """Whether most of the weights are not trained, by the bytes that they could take in 16 bits."""
    return made.weights.stored_bytes > 8 * made.weights.trained


def _notes(made: Recording, fits: bool) -> list[str]:
    notes = []
    phases = _needed_phases(made.found["phases"])
    first, last = phases[0], phases[-1]
    if first["reserved"] > last["reserved"] and fits:
        more = units.size(first["reserved"] - last["reserved"])
        notes.append(f"loading and the first step reserve {more} more than a later step.")
    caught = last["ooms"]
    if caught:
        times = "once" if caught == 1 else f"{caught} times"
        notes.append(
            f"the script ran out of memory {times}, and went on: the figures are those of what it goes on with."
        )
    if made.found["cards_used"] > 1:
        notes.append(
            f"the script uses {made.found['cards_used']} cards: the figures are those of number {made.found['card']}, "
            "on which most is reserved; the time is that of all operations, one after the other."
        )
    unseen_kernels = made.unseen_kernels
    if unseen_kernels > NOTICED_KERNELS * made.found["launches"]["all"]:
        notes.append(
            f"{unseen_kernels:,} of the {made.found['launches']['all']:,} kernels of a step are started by compiled "
            "code or by Triton: their launches are in the time, and not their work; it is too short."
        )
    grown = _grown(made)
    if grown > MIB:
        notes.append(
            f"memory grew by {units.size(grown)} in the last step: what forward passes have made is kept on the GPU. "
            "In a list, that is so in every step."
        )
    unseen = last["allocated"] - sum(made.parts().values())
    if unseen > max(64 * MIB, 0.02 * last["allocated"]):
        notes.append(
            f"{units.size(unseen)} of the allocated memory is not seen as tensors (compiled code, workspaces): "
            "it is in the verdict, and not among the parts."
        )
    return notes


def _grown(made: Recording) -> int:
    """The bytes that the forward passes of the last step and of those before have left alive, where memory grows by
    them. A loss that a variable holds is there once; weights and states are no pass's."""
    events, start = made.log.events, made.log.step_start
    seen = Counter(id(entry) for entry, _ in events)
    left = (Counter[int](), Counter[int]())
    for index, (entry, _) in enumerate(events):
        is_kept = seen[id(entry)] == 1 and entry.phase == "forward"
        if is_kept and entry.kind in (ACTIVATION, OTHER) and not entry.preexisting:
            left[index >= start][entry.bytes] += 1
    change = sum(sign * entry.bytes for entry, sign in events[start:])
    return min(change, sum((left[0] & left[1]).elements()))
