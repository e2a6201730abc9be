"""The step: what both recipes train with, and what the memory ledger counts.

The loss of an optimizer step is the mean over its effective batch, on any number of ranks. The mean of a micro-batch
is therefore weighted by its share of the labels: 1 / steps for equal micro-batches, and with padding or a short last
batch the share that makes the sum the mean of one large batch. (The Trainer alone adds the means of the micro-batches
for models that do not take `num_items_in_batch`.)
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments

from legroom.data.collate import IGNORE_INDEX
from legroom.data.data_loader import Batch
from legroom.parallelism.unwrap import inner_optimizer
from legroom.ranks import collectives


class StepSize(NamedTuple):
    """What the micro-batches of an optimizer step hold together, on all ranks.

    tokens: with padding. Of uneven batches on several ranks a tensor () on the device.
    """

    samples: int
    tokens: Any
    unpadded_tokens: int


class StepFigures(NamedTuple):
    """What is known of an optimizer step on all ranks, as `StepLog.step` takes it.

    loss: (), the mean over the effective batch. gradient_norm: () before clipping, None where nothing is clipped.
    """

    loss: torch.Tensor
    samples: int
    tokens: Any
    learning_rate: float
    gradient_norm: torch.Tensor | None
    unpadded_tokens: int


def step_counts(args: TrainingArguments, batches: int) -> tuple[int, int]:
    """Optimizer steps of an epoch of so many micro-batches, and of the whole training."""
    per_epoch = math.ceil(batches / args.gradient_accumulation_steps)
    if args.max_steps > 0:
        return per_epoch, args.max_steps
    return per_epoch, math.ceil(args.num_train_epochs * per_epoch)


def labels_in(labels: torch.Tensor) -> Any:
    """How many labels a loss averages over: a number, or () on the device.

    labels (B,): one per sample. labels (B, C) in floating point: 0 or 1 for each class. labels (B, T): the next tokens,
    T - 1 per row, without those that are ignored.
    """
    if labels.dim() == 1 or labels.is_floating_point():
        return labels.numel()
    return (labels[:, 1:] != IGNORE_INDEX).sum()


def labels_of(batch: Batch) -> torch.Tensor:
    """What the loss compares with; of a span its beginning, (B,)."""
    if "labels" in batch:
        return batch["labels"]
    return batch["start_positions"]


def step_shares(batches: Sequence[Batch]) -> tuple[list, StepSize]:
    """The weight of each micro-batch of an optimizer step, and the step's size.

    A weight is the micro-batch's part of the step's labels, times the number of ranks, because engines average
    gradients over ranks; None stands for 1.
    """
    first = batches[0]
    counts: list[Any]
    if first.even:  # rows are proportional to labels: no need to read the device or to ask the other ranks
        counts = [batch.rows for batch in batches]
        total: Any = sum(batch.rows_everywhere for batch in batches)
        tokens: Any = total * first["input_ids"].shape[1]
    else:
        counts, total, tokens = _counted(batches)
    size = StepSize(
        sum(batch.samples_everywhere for batch in batches),
        tokens,
        sum(batch.unpadded_everywhere for batch in batches),
    )
    if len(batches) == 1 and first.ranks == 1:
        return [None], size
    shares = []
    for count in counts:
        share = count * first.ranks / total
        if isinstance(share, torch.Tensor):
            share = share.float()
        shares.append(share)
    return shares, size


def _counted(batches: Sequence[Batch]) -> tuple[list[Any], Any, Any]:
    """(labels of each micro-batch of this rank, labels of all ranks, tokens of all ranks), of uneven batches."""
    counts: list[Any] = []
    tokens = 0
    for batch in batches:
        if batch.rows:
            counts.append(labels_in(labels_of(batch)))
            tokens += batch["input_ids"].numel()
        else:  # its one row is there so that this rank takes part
            counts.append(0)
    total: Any = sum(counts)
    ranks = batches[0].ranks
    if ranks == 1:
        return counts, total, tokens
    sums = collectives.all_reduce_sum([total, tokens], labels_of(batches[0]).device)
    # The ranks of one tensor or context group have the same rows, which all of them have counted.
    total, tokens = sums * ranks / collectives.world_size()
    return counts, total, tokens


def forward_backward(
    accelerator: Accelerator, model: torch.nn.Module, batch: Batch, share: Any, optimizer: Any
) -> torch.Tensor:
    """Runs the forward and backward pass of one micro-batch. Returns its part of this rank's loss, () on the device.

    optimizer: one that updates weights during the backward pass (LOMO's `fused_backward(loss, learning_rate)`) runs
    that pass itself.
    """
    loss = model(**batch).loss
    if loss.dim():
        loss = mean_over_replicas(loss, labels_of(batch))
    if share is not None:
        loss = loss * share
    inner = inner_optimizer(optimizer)
    if hasattr(inner, "fused_backward"):
        inner.fused_backward(loss, inner.param_groups[0]["lr"])
    elif accelerator.deepspeed_plugin:
        accelerator.backward(loss, scale_wrt_gas=False)  # not divided by the accumulation steps: the shares are
    else:
        accelerator.backward(loss)
    return loss.detach()


def learning_rate(optimizer: Any, scheduler: Any) -> float:
    """Of the step that the optimizer has just taken. Schedule-free optimizers have a warm-up of their own, which only
    they know."""
    rate = inner_optimizer(optimizer).param_groups[0].get("scheduled_lr")
    if rate is None:
        rate = scheduler.get_last_lr()[0]
    return float(rate)


def whole_norm(norm: Any) -> torch.Tensor | None:
    """The norm that clipping has returned, () on the device. norm: under FSDP a DTensor, whose parts are added up here;
    under DeepSpeed a number, or None where it has not clipped."""
    if isinstance(norm, DTensor):
        return norm.full_tensor()
    if norm is None:
        return None
    return torch.as_tensor(norm)


def mean_over_replicas(losses: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """DataParallel's mean loss. losses: (R,), the means of R replicas, each of one chunk of the labels."""
    weighted: Any = 0.0
    labels_of_all: Any = 0
    for loss, chunk in zip(losses, labels.chunk(len(losses))):
        count = labels_in(chunk)
        weighted = weighted + loss * count
        labels_of_all = labels_of_all + count
    return weighted / labels_of_all
