"""A tiny model of any architecture on whole rows, and on tokens that two ranks share out, each in a process."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

sys.path[:0] = [str(Path(__file__).parents[1] / "tools")]
import tiny

from legroom.data.collate import IGNORE_INDEX
from legroom.errors import Refusal
from legroom.models import behaviour, shifted_loss
from legroom.options import model_families
from legroom.parallelism import context

TASK, RANKS, T, WINDOW = "language_modelling", 2, 24, 5
CLOSE = 2e-5


def compare(
    kinds: list[str], folder: Path, difference: Callable[[str], str] | None = None, allowed: str = "CONTEXT"
) -> dict[str, str]:
    """Kind -> "" where both compute the same loss and gradients, or else what differs. Also of kinds that are
    refused by their name, which are put into the list `allowed` of model_families. folder: for the rendezvous."""
    chosen = difference or _difference, allowed
    # Not forked: where a test before has started autograd's threads, a forked process cannot run a backward pass.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])  # what the ranks need is imported once
    ranks = [processes.Process(target=_rank, args=(rank, kinds, folder, *chosen)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return json.loads((folder / "0.json").read_text())


def _rank(rank: int, kinds: list[str], folder: Path, difference: Callable[[str], str], allowed: str) -> None:
    getattr(model_families, allowed).update(kinds)
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=60))
    found = {kind: difference(kind) for kind in kinds}
    (folder / f"{rank}.json").write_text(json.dumps(found))


def _difference(kind: str) -> str:
    model, config = tiny.tiny_model(kind, TASK).eval(), tiny.tiny_configuration(kind, TASK)
    with torch.no_grad():  # so that the logits depend much on what a token sees
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(5)
    if getattr(model.config.get_text_config(), "sliding_window", None):
        model.config.get_text_config().sliding_window = WINDOW
    if not behaviour.of(config, TASK).shifts_labels:
        shifted_loss.use_shifted_loss(model)
    torch.manual_seed(0)
    ids = torch.randint(tiny.FIRST_ORDINARY_ID, tiny.VOCAB - 1, (2, T))
    labels, mask = ids.clone(), torch.ones_like(ids)
    labels[0, 3:9] = labels[1, 17:] = IGNORE_INDEX
    mask[1, 17:] = 0
    batches = [{"input_ids": ids, "labels": labels, **more} for more in ({}, {"attention_mask": mask})]
    whole = [_step(model, batch) for batch in batches]
    try:
        context.check(RANKS, kind, config, TASK)
        context.share_out(model, context.neighbours(RANKS))
        parts = [_step(model, batch) for batch in batches]
    except Refusal as error:
        return f"refused: {error}"
    for expected, part in zip(whole, parts):
        least = 0.01 * max(value.abs().max() for value in expected.values())  # that of a key's bias is rounding alone
        for name, value in expected.items():
            dist.all_reduce(part[name])
            apart = (part[name] / RANKS - value).abs().max() / max(value.abs().max(), least)
            if not apart <= CLOSE:
                return f"{name} differs by {apart:.1e}"
    return ""


def _step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The loss and the gradients."""
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    return gradients | {"loss": loss.detach()}
