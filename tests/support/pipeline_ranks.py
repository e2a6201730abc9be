"""A tiny model of any architecture on one process, and in parts on two ranks, each in a process."""

from __future__ import annotations

from pathlib import Path

import context_ranks
import torch
import torch.distributed as dist

from legroom.config.menus import Parallelism
from legroom.data.data_loader import Batch
from legroom.errors import Refusal
from legroom.models import behaviour, shifted_loss
from legroom.parallelism import pipeline

tiny, TASK, T = context_ranks.tiny, context_ranks.TASK, context_ranks.T
SHARES = [0.25, 0.75]
OWN = Parallelism(  # as `options.compose` leaves it
    name="pipeline",
    kind="pipeline",
    stages=2,
    schedule="gpipe",
    chunks=None,
    context=None,
    tensor_size=None,  # type: ignore[arg-type]
    sequence_parallel=None,  # type: ignore[arg-type]
    sync_each_batch=None,
)


def compare(kinds: list[str], folder: Path) -> dict[str, str]:
    """As `context_ranks.compare`."""
    return context_ranks.compare(kinds, folder, difference, "PIPELINE")


def difference(kind: str) -> str:
    """What any of the ranks finds."""
    found = ["", ""]
    dist.all_gather_object(found, _own_difference(kind))
    return found[0] or found[1]


def _own_difference(kind: str) -> str:
    """ "" where both compute the same losses and gradients, or else what differs or refuses."""
    model, config = tiny.tiny_model(kind, TASK).eval(), tiny.tiny_configuration(kind, TASK)
    if not behaviour.of(config, TASK).shifts_labels:
        shifted_loss.use_shifted_loss(model)
    torch.manual_seed(0)
    batches = []
    for length in (T, T - 7):  # the second is padded to the first
        ids = torch.randint(tiny.FIRST_ORDINARY_ID, tiny.VOCAB - 1, (2, length))
        batches.append(Batch({"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}))
        batches[-1].ranks = 1
    whole = torch.zeros(())
    for batch, share in zip(batches, SHARES):
        loss = model(**batch).loss * share
        loss.backward()
        whole += loss.detach()
    expected = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    try:
        pipeline.check(kind, config, TASK)
        pipeline.split(model, OWN)
        part = pipeline.of(model)
        loss = part.step(batches, SHARES) / 2
    except Refusal as error:
        return f"refused: {error}"
    dist.all_reduce(loss)
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    names = [None, None]
    dist.all_gather_object(names, set(found))
    if missing := expected.keys() - set.union(*names):
        return f"{min(missing)} has no gradient"
    least = 0.01 * max(value.abs().max() for value in expected.values())
    for name, value in {"loss": loss, **found}.items():
        other = whole if name == "loss" else expected[name]
        apart = (value - other).abs().max() / max(other.abs().max(), least)
        if not apart <= context_ranks.CLOSE:
            return f"{name} differs by {apart:.1e}"
    return ""
