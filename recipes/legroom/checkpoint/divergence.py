"""Whether a training has diverged: its weights or optimizer states are not numbers (NaN or infinite) any more.

The losses that the step log reads in any case raise the suspicion. Weights and optimizer states are looked at then, and
before anything is saved. So a step computes nothing for this, and no saved file holds a model that has diverged.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from legroom.compat import torch_private
from legroom.config import Config
from legroom.errors import Diverged, NoStepTaken
from legroom.measure.step_log import StepLog
from legroom.parallelism import unwrap
from legroom.ranks import collectives
from legroom.records.messages import Progress

# Steps in a row without a finite loss, each skipped by the gradient scaler, after which nothing will change any more:
# the weights stay as they are, and only batches and dropout differ.
MOST_SKIPPED_STEPS = 20
CHUNK = 2**24  # elements of an 8-bit floating-point tensor that are converted at once


class DivergenceWatch:
    """Looks at the losses of the step log, and at weights and optimizer states where there is a reason to.

    loop: a `Loop` of either recipe. With train.on_nan=continue nothing is stopped, and `is_whole` still answers.
    """

    def __init__(self, cfg: Config, step_log: StepLog, loop: Any, progress: Progress):
        self.stops = cfg.train.on_nan == "stop"
        self.step_log = step_log
        self.loop = loop
        self.progress = progress
        self._looked_at = len(step_log.losses)  # those of a training that is resumed were looked at before
        self._whole_at_step: int | None = None
        self._has_warned = False

    def suspects(self) -> bool:
        """Whether a loss that this rank has read since the last call is not finite, and the training is to stop."""
        losses = self.step_log.losses
        new = losses[self._looked_at :]
        self._looked_at = len(losses)
        return self.stops and not all(math.isfinite(loss) for loss in new)

    def confirm(self, step: int) -> None:
        """After a loss that is not finite: looks at weights and states. Every rank calls this after the same step.

        Where they are numbers, the step with that loss was skipped, as fp16's gradient scaler does, and a warning says
        so. Raises Diverged where they are not, or where no step is taken any more.
        """
        self.step_log.flush()  # so that all ranks have read the same losses
        self._looked_at = len(self.step_log.losses)
        self.is_whole(step)
        self._refuse_skipped(MOST_SKIPPED_STEPS)
        if not self._has_warned:
            self._has_warned = True
            is_finite = [math.isfinite(loss) for loss in self.step_log.losses]
            first = is_finite.index(False) + 1
            self.progress.warn(
                f"the loss of step {first} is not a number. Weights and optimizer states are: the step was skipped, "
                "and the training goes on."
            )

    def at_end(self, step: int) -> None:
        """After the last step, whose loss is in the log. Every rank calls this.

        Raises Diverged as `confirm` does, and where not one step of a training was taken.
        """
        losses = self.step_log.losses
        self._looked_at = len(losses)
        self.is_whole(step)
        if self.stops and losses:
            self._refuse_skipped(min(MOST_SKIPPED_STEPS, len(losses)))
        count = sum(not math.isfinite(loss) for loss in losses)
        if count > 1 and self._has_warned:
            self.progress.warn(f"the loss of {count} of {len(losses)} steps is not a number: they were skipped.")

    def is_whole(self, step: int) -> bool:
        """Whether all weights and optimizer states of all ranks are numbers. Every rank calls this after the same step.

        Raises Diverged where they are not and the training is to stop.
        """
        if self._whole_at_step == step:
            return True
        names = [name for name in collectives.all_gather(first_not_finite(self.loop)) if name is not None]
        if not names:
            self._whole_at_step = step
            return True
        if self.stops:
            raise Diverged(f"weights are not numbers after step {step}, as {names[0]}; {self._since()}")
        return False

    def _refuse_skipped(self, most: int) -> None:
        """Raises NoStepTaken where the last `most` steps, or more, were skipped."""
        if _not_finite_at_end(self.step_log.losses) >= most:
            raise NoStepTaken(f"{self._since()}, and every step since was skipped: nothing is trained")

    def _since(self) -> str:
        """From which step on the loss is not a number."""
        losses = self.step_log.losses
        count = _not_finite_at_end(losses)
        if count > 0:
            return f"the loss is not a number since step {len(losses) - count + 1}"
        if losses:
            return f"the loss of that step was {losses[-1]:.4g}"
        return "there is no loss yet"


def _not_finite_at_end(losses: list[float]) -> int:
    """How many of the last losses are not finite."""
    count = 0
    for loss in reversed(losses):
        if math.isfinite(loss):
            break
        count += 1
    return count


@torch.no_grad()
def first_not_finite(loop: Any) -> str | None:
    """The name of a tensor of this rank that is trained, or is an optimizer state, and is not all finite.

    None where all are. Buffers may hold infinities, as masks do, but no NaN.
    """
    by_device: dict[torch.device, list[tuple[str, bool, torch.Tensor]]] = {}
    for name, tensor, may_be_infinite in _tensors(loop):
        extremes = _extremes(tensor)
        if extremes is not None:
            by_device.setdefault(extremes.device, []).append((name, may_be_infinite, extremes))
    for tensors in by_device.values():
        values = torch.stack([extremes for _, _, extremes in tensors]).tolist()  # (N, 2): one transfer for all tensors
        for (name, may_be_infinite, _), (smallest, largest) in zip(tensors, values):
            if math.isfinite(smallest) and math.isfinite(largest):
                continue
            if may_be_infinite and not math.isnan(smallest) and not math.isnan(largest):
                continue
            return name
    return None


def _tensors(loop: Any) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """(name, tensor on this rank, whether infinities are allowed in it) of all that training changes."""
    model = unwrap.inner_model(loop.accelerator, loop.model)
    names = {}
    for name, weight in model.named_parameters():
        names[id(weight)] = name
        if weight.requires_grad:
            # DeepSpeed's ZeRO-3 keeps this rank's part of a weight there.
            yield name, getattr(weight, "ds_tensor", weight), False
    for name, buffer in model.named_buffers():
        yield name, buffer, True
    optimizer = unwrap.inner_optimizer(loop.optimizer)
    for group in optimizer.param_groups:
        for weight in group["params"]:
            name = names.get(id(weight), "the optimizer's copy of weights")
            if id(weight) not in names:
                yield name, weight, False
            if not hasattr(optimizer, "state"):
                continue
            for key, value in optimizer.state.get(weight, {}).items():
                if isinstance(value, torch.Tensor):
                    yield f"{name}/{key}", value, False


def _extremes(tensor: torch.Tensor) -> torch.Tensor | None:
    """(2,) float64: the smallest and the largest element on this rank, NaN if one is; None of what cannot be NaN."""
    extremes = []
    for held in torch_private.held_tensors(tensor):
        held = held.detach()
        if not held.is_floating_point() or held.numel() == 0 or held.is_meta:
            continue
        if held.element_size() == 1:  # 8-bit types have no comparison
            for chunk in held.reshape(-1).split(CHUNK):
                extremes.append(torch.stack(chunk.float().aminmax()).double())
        else:
            extremes.append(torch.stack(held.aminmax()).double())
    if not extremes:
        return None
    if len(extremes) == 1:
        return extremes[0]
    return torch.stack(torch.stack(extremes).aminmax())
