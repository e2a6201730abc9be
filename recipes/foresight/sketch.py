"""A first look at a configuration from a model of a few layers: its time, and less memory than which it cannot take.

Layers are alike. So a step's seconds grow by the same amount with each, and so do the bytes alive at any place
of the step: their peak is the largest of several straight lines, and a line through two points of it never lies
above it further on. What the optimizer adds does not depend on the batch, nor the passes on the optimizer, so a
few sketches stand for many configurations.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass

from recipes.foresight import forecast, roofline
from recipes.foresight.operations import Tally

DEPTHS = (1, 2)  # layers of the two models that are looked at
PASSES, STEP = ("forward", "backward"), ("step",)


@dataclass(frozen=True)
class Sketch:
    """Of one optimizer step: the passes of its micro-batches, and what is done once after them.

    pass_bytes: the peak in the passes, less the optimizer's states. step_bytes: the peak in the rest, with them.
    Seconds of the device and of the host, which overlap.
    """

    pass_bytes: float
    step_bytes: float
    states_bytes: float
    pass_device_seconds: float
    pass_host_seconds: float
    step_device_seconds: float
    step_host_seconds: float


def least_bytes(passes: Sketch, step: Sketch) -> float:
    """What the passes of one sketch and the optimizer of another take at least."""
    return max(passes.pass_bytes + step.states_bytes, step.step_bytes)


def step_seconds(passes: Sketch, step: Sketch) -> float:
    """A step of the passes of one sketch and the optimizer of another."""
    return max(passes.pass_device_seconds + step.step_device_seconds, passes.pass_host_seconds + step.step_host_seconds)


def sketch(cfg, precisions: list[str], folder: str) -> list[Sketch]:
    """A sketch for each of the precisions, which differ in the speed of the same operations.

    Weights that are loaded say themselves how many layers they have: these models are looked at whole.
    """
    layers = cfg.model.layers
    depths = DEPTHS if not cfg.model.pretrained and layers > DEPTHS[-1] else (layers,)
    looks = []
    for depth in depths:
        shallow = copy.deepcopy(cfg)
        shallow.model.layers = depth
        looks.append(_figures(shallow, precisions, folder))
    if len(depths) == 1:
        return [Sketch(*figures) for figures in looks[0]]
    times = (layers - depths[0]) / (depths[1] - depths[0])
    return [Sketch(*(low + times * (high - low) for low, high in zip(*pair))) for pair in zip(*looks)]


def _figures(cfg, precisions: list[str], folder: str) -> list[list[float]]:
    """The fields of a Sketch for each precision, of the model as it is."""
    seen = forecast.foresee(cfg, folder)
    states = seen.parts["largest_bytes"]["optimizer"] - seen.paged_bytes
    peaks = _peaks(seen)
    workspaces = sum(hidden.bytes for hidden in seen.tape.hidden if hidden.kept)
    sizes = [max(peaks[phase] for phase in PASSES) - states + workspaces, peaks["step"] + workspaces, states]
    made = []
    for name in precisions:
        parts = [roofline.predict(_part(seen.tally, phases), cfg.gpu, name) for phases in (PASSES, STEP)]
        made.append(sizes + [figure for told in parts for figure in (told.device_seconds, told.host_seconds)])
    return made


def _peaks(seen) -> Counter:
    """Phase of the last step -> the most bytes that are alive in it on the device."""
    peaks, live = Counter(), -seen.paged_bytes
    start = seen.tape.starts[-1]
    for index, (entry, sign) in enumerate(seen.tape.log):
        live += sign * entry.bytes
        if index >= start and sign > 0:
            peaks[entry.phase] = max(peaks[entry.phase], live)
    return peaks


def _part(tally: Tally, phases: tuple[str, ...]) -> Tally:
    return Tally({phase: tally.counts[phase] for phase in phases if phase in tally.counts},
                 Counter({phase: tally.calls[phase] for phase in phases}))
