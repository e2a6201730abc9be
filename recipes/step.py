"""The step: what both recipes train with, and what the ledger counts.

The loss of an optimizer step is the mean over its effective batch. A micro-batch's own mean
therefore counts by its share of the labels: with equal micro-batches that is 1 / steps, and with
padding or a short last batch it is still the mean that one large batch would give. (The Trainer
left alone adds the micro-batches' means up for models that do not take `num_items_in_batch`.)
"""

from __future__ import annotations

from recipes.data import IGNORED


def labels_in(batch):
    """How many labels the loss of a batch averages over: a number, or () on the device.

    labels (B,): one a sample. labels (B, T): the next tokens, T - 1 a row, without ignored ones.
    """
    labels = batch["labels"]
    return labels.numel() if labels.dim() == 1 else (labels[:, 1:] != IGNORED).sum()


def shares(batches) -> list:
    """Each micro-batch's share of the optimizer step's labels; [None] when it stands alone."""
    if len(batches) == 1:
        return [None]
    counts = [labels_in(batch) for batch in batches]
    total = sum(counts)
    return [count / total for count in counts]


def forward_backward(accelerator, model, batch, share):
    """One micro-batch. Returns its part of the step's loss, () on the device."""
    loss = model(**batch).loss
    if share is not None:
        loss = loss * share
    accelerator.backward(loss)
    return loss.detach()
