"""The step: what both recipes train with, and what the memory ledger counts.

The loss of an optimizer step is the mean over its effective batch, on any number of ranks. The mean of a micro-batch
is therefore weighted by its share of the labels: 1 / steps for equal micro-batches, and with padding or a short last
batch the share that makes the sum the mean of one large batch. (The Trainer alone adds the means of the micro-batches
for models that do not take `num_items_in_batch`.)
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments

from legroom.data.collate import IGNORE_INDEX
from legroom.data.data_loader import Batch
from legroom.parallelism.unwrap import inner_optimizer
from legroom.ranks import collectives


def step_counts(args: TrainingArguments, batches: int) -> tuple[int, int]:
    """Optimizer steps of an epoch of so many micro-batches, and of the whole training."""
    per_epoch = math.ceil(batches / args.gradient_accumulation_steps)
    return per_epoch, args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)


def labels_in(labels: torch.Tensor) -> Any:
    """How many labels a loss averages over: a number, or () on the device.

    labels (B,): one per sample. labels (B, C) in floating point: 0 or 1 for each class. labels (B, T): the next tokens,
    T - 1 per row, without those that are ignored.
    """
    return labels.numel() if labels.dim() == 1 or labels.is_floating_point() else (labels[:, 1:] != IGNORE_INDEX).sum()


def labels_of(batch: Batch) -> torch.Tensor:
    """What the loss compares with; of a span its beginning, (B,)."""
    return batch["labels"] if "labels" in batch else batch["start_positions"]


def step_shares(batches: Sequence[Batch]) -> tuple[list, int, Any, int]:
    """(shares, samples, tokens, tokens without padding) of an optimizer step: the weight of each micro-batch, and the
    totals of all ranks.

    A share is a micro-batch's part of the step's labels, times the number of ranks, because engines average gradients
    over ranks; None stands for 1. Tokens of uneven batches on several ranks: () on the device.
    """
    first = batches[0]
    labels, T = labels_of(first), first["input_ids"].shape[1]
    rows = sum(batch.rows_everywhere for batch in batches)
    sizes = sum(batch.samples_everywhere for batch in batches), sum(batch.unpadded_everywhere for batch in batches)
    counts: list[Any]
    everything: Any
    tokens: Any
    if first.even:  # rows are proportional to labels: no need to read the device or to ask the other ranks
        counts, everything, tokens = [batch.rows for batch in batches], rows, rows * T
    else:
        counts = [labels_in(labels_of(batch)) * bool(batch.rows) for batch in batches]
        everything = sum(counts)
        tokens = sum(batch["input_ids"].numel() * bool(batch.rows) for batch in batches)
        if first.ranks > 1:
            everything, tokens = (
                collectives.all_reduce_sum([everything, tokens], labels.device) * first.ranks / collectives.world_size()
            )
    if len(batches) == 1 and first.ranks == 1:
        return [None], sizes[0], tokens, sizes[1]
    shares = [count * first.ranks / everything for count in counts]
    return [share.float() if hasattr(share, "float") else share for share in shares], sizes[0], tokens, sizes[1]


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
    else:
        # DeepSpeed would divide by the accumulation steps, which the shares already do.
        accelerator.backward(loss, **({"scale_wrt_gas": False} if accelerator.deepspeed_plugin else {}))
    return loss.detach()


def learning_rate(optimizer: Any, scheduler: Any) -> float:
    """Of the step that the optimizer has just taken. Schedule-free optimizers have a warm-up of their own, which only
    they know."""
    rate = inner_optimizer(optimizer).param_groups[0].get("scheduled_lr")
    return float(scheduler.get_last_lr()[0] if rate is None else rate)


def whole_norm(norm: Any) -> torch.Tensor | None:
    """The norm that clipping has returned, () on the device. norm: under FSDP a DTensor, whose parts are added up here;
    under DeepSpeed a number, or None where it has not clipped."""
    if isinstance(norm, DTensor):
        return norm.full_tensor()
    return None if norm is None else torch.as_tensor(norm)


def mean_over_replicas(losses: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """DataParallel's mean loss. losses: (R,), the means of R replicas, each of one chunk of the labels."""
    counts = [labels_in(chunk) for chunk in labels.chunk(len(losses))]
    total = sum((loss * count for loss, count in zip(losses, counts)), losses.new_zeros(()))
    return total / sum(counts)
