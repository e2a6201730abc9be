"""What packing makes of the rows to train on, and the effective batch with which a step trains on as many tokens.

The rows are read once, in worker processes; without `fit.allow=[packing]` they are not read here at all.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, cast

from legroom.config import Config
from legroom.errors import Refusal
from legroom.foresight.search import space
from legroom.foresight.search.space import BATCH, PACKING, Rows, SearchSpace

if TYPE_CHECKING:
    import numpy

NEAR = 0.125  # a batch within this share of the equal one is taken for it, where more powers of two divide it: 8 for 9
FAR = 0.25  # what is further away is no comparison


def enter(search: SearchSpace, workers: Executor) -> None:
    """Read the rows with and without packing, and enter what follows from them into the search space.

    workers: an executor whose processes have imported the libraries.
    """
    plain, packed = (workers.submit(read, search.config({PACKING: value})) for value in (False, True))
    (lengths, samples, _), (packed_lengths, packed_samples, why) = plain.result(), packed.result()
    if lengths is not None and packed_lengths is not None:
        replicas = search.base.parallelism.replicas or 1
        equal = search.effective * lengths.mean() / packed_lengths.mean()
        effective = effective_batch(equal, replicas)
        if abs(effective / equal - 1) <= FAR:
            search.rows = {
                False: _rows(search, lengths, samples, search.effective),
                True: _rows(search, packed_lengths, packed_samples, effective),
            }
            batches = {batch for rows in search.rows.values() for batch in space.batches(rows.effective // replicas)}
            search.values[BATCH] = sorted(batches)
        why = (
            f"a row has {packed_samples:.2g} samples, and {effective} of them are no batch of about {search.effective}"
            f" samples. Type a larger batch.effective, or data.packing=true."
        )
    if search.rows is None:
        leave_out(search, why)
    space.exclude(search)


def enter_all(searches: list[SearchSpace], workers: Executor) -> None:
    """`enter` for several searches whose results are compared: all count tokens where one of them packs."""
    for search in searches:
        if PACKING in search.values:
            enter(search, workers)
    if not any(search.rows for search in searches):
        return
    for search in [search for search in searches if search.rows is None]:
        lengths, samples, _ = workers.submit(read, search.config({})).result()
        if lengths is not None:
            search.rows = {False: _rows(search, lengths, samples, search.effective)}


def leave_out(search: SearchSpace, why: str) -> None:
    """Do not search packing. why: the reason; '' where it has been said."""
    del search.values[PACKING]
    search.pinned[PACKING] = f"{PACKING}=false"
    if why:
        search.left_out.append(f"{PACKING}=true: {why}")


def effective_batch(equal: float, replicas: int) -> int:
    """The effective batch in packed rows, for about as many tokens as the rows of a step have that are not packed.

    equal: the one with as many tokens, no whole number. It is divided by `replicas`, and of those within NEAR the one
    that most powers of two divide: then more values of batch.per_device can be tried.
    """
    nearest = max(1, round(equal / replicas))
    near = [share for share in range(1, 2 * nearest + 1) if abs(share * replicas / equal - 1) <= NEAR]
    best = max(near, default=nearest, key=lambda share: (share & -share, -abs(share * replicas - equal)))
    return best * replicas


def _rows(search: SearchSpace, lengths: numpy.ndarray, samples: float, effective: int) -> Rows:
    replicas = search.base.parallelism.replicas or 1
    shares = {
        batch: typical_share(lengths, batch, effective, replicas, search.base)
        for batch in space.batches(effective // replicas)
    }
    return Rows(float(lengths.mean()), samples, effective, shares)


def typical_share(lengths: numpy.ndarray, batch: int, effective: int, replicas: int, cfg: Config) -> float:
    """Positions of a micro-batch in a random order of the rows, as a share of those that an extrapolation has.

    lengths: of the rows. batch: rows of a micro-batch on one of `replicas`. effective: rows of a step. An extrapolation
    runs the first micro-batches on the longest rows, and counts the others as one of them (`OpTrace.step_tally`).
    """
    import numpy

    from legroom.foresight.simulation import MICRO_BATCHES  # imports torch

    def padded(widths: numpy.ndarray) -> numpy.ndarray:
        multiple = cfg.data.pad_to_multiple_of or 1
        return numpy.maximum(widths, numpy.minimum(-(-widths // multiple) * multiple, cfg.data.seq_len))

    whole = len(lengths) // batch * batch
    if not whole:
        return 1.0
    usual = padded(numpy.random.default_rng(0).permutation(lengths)[:whole].reshape(-1, batch).max(1)).mean()
    longest = padded(numpy.sort(lengths)[::-1][:effective][:: batch * replicas])
    run = longest[: MICRO_BATCHES + (cfg.parallelism.world_size > 1)]
    repeated = run[1 if len(run) == MICRO_BATCHES + 1 else -1]
    return float(usual * len(longest) / (run.sum() + (len(longest) - len(run)) * repeated))


# --- in a worker ----------------------------------------------------------------------------------------


def read(cfg: Config) -> tuple[numpy.ndarray | None, float, str]:
    """(tokens of each row to train on, mean number of samples in a row, ''); or (None, 0, why it is refused)."""
    from legroom.data import rows  # imports torch
    from legroom.training import setup

    try:
        with tempfile.TemporaryDirectory() as folder:
            train = setup.prepare(cfg, folder, _no_arguments).data.train
    except Refusal as error:
        return None, 0.0, str(error)
    return rows.lengths(train), float(rows.samples_in(train).mean()), ""


def _no_arguments(cfg: Config, folder: str) -> Any:
    """Reading rows takes no TrainingArguments, which are refused for a GPU that is not there."""
    return cast(Any, None)
