"""What a whole training consists of, as its rows make it: optimizer steps and evaluations of so much work each.

Work of micro-batches, (3,): their number, the sum of their positions (rows x T) and the sum of rows x T^2, with which
attention's arithmetic grows. T is the padded length. Of one rank: the one with the longest rows.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy

from legroom.config import Config
from legroom.data import collate, rows
from legroom.data.dataset import Data
from legroom.records.record import Lengths

MOST_EPOCHS = 3  # whose order is followed; later ones have the same rows in other orders


@dataclass(frozen=True)
class RunSchedule:
    """The whole training.

    steps: optimizer steps. rows: to train on. epochs: passes over them. work: (S, 3), of the steps of the first epochs,
    which stand for all. simulated: (D, 3), of the steps that were simulated: the one on the longest rows, then the
    first of the training, if the lengths differ. evaluation: (3,), of the whole evaluation split; None where there is
    none. evaluations: how many there are. lengths: of the rows. data_seconds: in which the rows were prepared here.
    """

    steps: int
    rows: int
    epochs: float
    work: numpy.ndarray
    simulated: numpy.ndarray
    evaluation: numpy.ndarray | None
    evaluations: int
    lengths: Lengths
    data_seconds: float = 0.0


def work_of(batches: list[Any]) -> numpy.ndarray:
    """(3,): the work of the micro-batches of a step on this rank."""
    shapes = numpy.array([batch["input_ids"].shape for batch in batches], dtype=float)
    return _work(shapes[:, 0], shapes[:, 1])


def _work(counts: numpy.ndarray, lengths: numpy.ndarray) -> numpy.ndarray:
    """(3,), or (S, 3) of steps. counts, lengths: (n,) or (S, n): the rows of each micro-batch and their padded T."""
    parts = [(counts > 0).sum(-1), (counts * lengths).sum(-1), (counts * lengths**2).sum(-1)]
    return numpy.stack(parts, axis=-1).astype(float)


def of(cfg: Config, training: Any, simulated: list[numpy.ndarray], data_seconds: float) -> RunSchedule:
    """The schedule of a training that is built. simulated: the work of the steps that were simulated."""
    data, loop = training.data, training.loop
    steps, per_epoch = loop.total_steps, loop.steps_per_epoch
    counted = min(math.ceil(steps / per_epoch), MOST_EPOCHS)
    micro_batches = cfg.accumulation.steps
    epochs = [_epoch(data, loop.loader.batch_sampler, epoch, micro_batches) for epoch in range(counted)]
    evaluation = None
    evaluations = 0
    if cfg.eval.enabled and data.eval is not None and len(data.eval):
        evaluation = work_of_rows(data, data.eval, cfg.eval.batch)
        evaluations = 1  # behind the training
        if cfg.eval.every_steps:
            evaluations += (steps - 1) // cfg.eval.every_steps
    return RunSchedule(
        steps=steps,
        rows=len(data.train),
        epochs=steps / per_epoch,
        work=numpy.concatenate(epochs)[:steps],
        simulated=numpy.stack(simulated),
        evaluation=evaluation,
        evaluations=evaluations,
        lengths=_lengths(cfg, data),
        data_seconds=data_seconds,
    )


def _epoch(data: Data, sampler: Any, epoch: int, micro_batches: int) -> numpy.ndarray:
    """(S, 3): the work of the steps of an epoch, in the order in which the training has its rows."""
    before = sampler.epoch
    sampler.epoch = epoch
    order = numpy.asarray(sampler.order())
    sampler.epoch = before
    counts, longest = _batches(data, _row_lengths(data, data.train)[order], sampler.per_rank)
    missing = -len(counts) % micro_batches  # of the last step of an epoch
    shape = (-1, micro_batches)
    counts, longest = (numpy.pad(each, (0, missing)).reshape(shape) for each in (counts, longest))
    return _work(counts, longest)


def work_of_rows(data: Data, part: Any, per_rank: int) -> numpy.ndarray:
    """(3,): the work of all micro-batches of some rows of the data, in their order. per_rank: rows of a micro-batch."""
    return _work(*_batches(data, _row_lengths(data, part), per_rank))


def _batches(data: Data, lengths: numpy.ndarray, per_rank: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """(rows of a rank, padded T) of each micro-batch. lengths: of the rows in order. per_rank: rows of a batch."""
    together = per_rank * data.ranks
    padded = numpy.pad(lengths, (0, -len(lengths) % together)).reshape(-1, together)
    counts = numpy.ceil((padded > 0).sum(1) / data.ranks)
    longest = padded.max(1)
    if isinstance(data.collate, collate.Padding):
        longest = numpy.array([data.collate.length(int(length)) for length in longest])
    return counts, longest


def _row_lengths(data: Data, part: Any) -> numpy.ndarray:
    """(N,): the tokens of each row. Rows of one length are not read, for long ones would take gigabytes."""
    if data.collate is collate.stack:
        return numpy.full(len(part), len(part[0]["input_ids"]))
    return rows.lengths(part)


def _lengths(cfg: Config, data: Data) -> Lengths:
    """The lengths of the rows to train on."""
    tokens = _row_lengths(data, data.train)
    return Lengths(
        rows=len(tokens),
        shortest=int(tokens.min()),
        median=int(numpy.median(tokens)),
        longest=int(tokens.max()),
        from_rows=cfg.data.kind != "dummy" and not data.stand_ins,
    )
