"""The step: what both recipes train with, and what the ledger counts.

The loss of an optimizer step is the mean over its effective batch, on however many ranks. A
micro-batch's own mean therefore counts by its share of the labels: with equal micro-batches that is
1 / steps, and with padding or a short last batch it is still the mean that one large batch would
give. (The Trainer left alone adds the micro-batches' means up for models that do not take
`num_items_in_batch`.)
"""

from __future__ import annotations

from recipes.data.collate import IGNORE_INDEX
from recipes.ranks import collectives


def labels_in(labels):
    """How many labels a loss averages over: a number, or () on the device.

    labels (B,): one a sample. labels (B, T): the next tokens, T - 1 a row, without ignored ones.
    """
    return labels.numel() if labels.dim() == 1 else (labels[:, 1:] != IGNORE_INDEX).sum()


def step_shares(batches) -> tuple[list, int, int]:
    """(shares, samples, tokens) of an optimizer step: what each micro-batch counts for, and what all ranks train on.

    A share is a micro-batch's part of the step's labels, times the ranks, since engines average gradients over
    ranks; None stands for 1. Tokens of uneven batches on several ranks: () on the device.
    """
    first = batches[0]
    labels, T = first["labels"], first["input_ids"].shape[1]
    samples = sum(batch.rows_everywhere for batch in batches)
    if first.even:  # rows stand for labels: no need to ask the device, nor the other ranks
        counts, everything, tokens = [batch.rows for batch in batches], samples, samples * T
    else:
        counts = [labels_in(batch["labels"]) * bool(batch.rows) for batch in batches]
        everything = sum(counts)
        tokens = sum(batch["input_ids"].numel() * bool(batch.rows) for batch in batches)
        if first.ranks > 1:
            everything, tokens = (
                collectives.all_reduce_sum([everything, tokens], labels.device) * first.ranks / collectives.world_size()
            )
    if len(batches) == 1 and first.ranks == 1:
        return [None], samples, tokens
    shares = [count * first.ranks / everything for count in counts]
    return [share.float() if hasattr(share, "float") else share for share in shares], samples, tokens


def forward_backward(accelerator, model, batch, share):
    """One micro-batch. Returns its part of this rank's loss, () on the device."""
    loss = model(**batch).loss
    if loss.dim():
        loss = over_replicas(loss, batch["labels"])
    if share is not None:
        loss = loss * share
    # DeepSpeed would divide by the accumulation steps, which the shares have done.
    accelerator.backward(loss, **({"scale_wrt_gas": False} if accelerator.deepspeed_plugin else {}))
    return loss.detach()


def over_replicas(losses, labels):
    """DataParallel's mean loss: (R,) means of R replicas, which got R chunks of the labels."""
    counts = [labels_in(chunk) for chunk in labels.chunk(len(losses))]
    return sum(loss * count for loss, count in zip(losses, counts)) / sum(counts)
