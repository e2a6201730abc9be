"""The data loader of both recipes: the order of the rows, and the batches of one rank on its device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader
from transformers import TrainingArguments
from transformers.trainer_pt_utils import get_length_grouped_indices

from legroom.data import collate, rows
from legroom.data.dataset import Data
from legroom.data.masking import Masking
from legroom.machine import signals


def batch_loader(data: Data, part: Any, args: TrainingArguments, batch: int, shuffle: bool) -> BatchLoader:
    """The loader of this rank's batches of `part`, which are rows of the data.

    args: its `data_seed` determines the order. batch: rows in one forward pass of one process.
    """
    figures = None
    if data.collate is not collate.stack:
        figures = RowFigures(rows.lengths(part), rows.samples_in(part))
    sampler = DistributedBatchSampler(len(part), batch, args.data_seed if shuffle else None, data.rank, data.ranks)
    if shuffle and data.group_by_length and figures is not None:
        sampler.group_by_length(figures.tokens.tolist(), batch * data.ranks * args.gradient_accumulation_steps)
    return BatchLoader(part, data.collate, args, sampler, figures, keep_workers=shuffle, masking=data.masking)


def largest_step(data: Data, args: TrainingArguments) -> BatchLoader:
    """The loader of the one optimizer step that needs the most memory."""
    count = args.train_batch_size * data.ranks * args.gradient_accumulation_steps
    return batch_loader(data, longest(data, data.train, count), args, args.train_batch_size, shuffle=False)


def longest(data: Data, part: Any, count: int) -> Any:
    """So many rows of the data, at most: the longest, or the first if all are equally long."""
    if data.collate is collate.stack:
        return part.select(range(min(count, len(part))))
    return part.select(numpy.argsort(-rows.lengths(part), kind="stable")[:count].tolist())


@dataclass(frozen=True)
class RowFigures:
    """Of rows of different lengths: the tokens of each, (N,), and the samples in each, (N,)."""

    tokens: numpy.ndarray
    samples: numpy.ndarray


class Batch(dict):
    """The arguments of a model's forward pass, on its device, and the size of the micro-batch on all ranks.

    rows: of this rank; 0 if the rank has one row only so that it takes part in the step, as every rank must.
    rows_everywhere: of all `ranks` together. even: all rows have the same numbers of tokens and of labels.
    samples_everywhere: in the rows of all ranks. unpadded_everywhere: their tokens without padding. indices: of this
    rank's rows in the data.
    """

    rows: int
    rows_everywhere: int
    ranks: int
    indices: list[int]
    even: bool
    samples_everywhere: int
    unpadded_everywhere: int


class DistributedBatchSampler:
    """A batch sampler for a DataLoader: the indices of the rows in each micro-batch of one rank.

    count: rows of all ranks. per_rank: rows of a full micro-batch on one rank. seed: None keeps the order of the rows.
    first: micro-batches that are skipped at the start of the epoch, for a training that is resumed.
    """

    def __init__(self, count: int, per_rank: int, seed: int | None, rank: int = 0, ranks: int = 1):
        self.count = count
        self.per_rank = per_rank
        self.seed = seed
        self.rank = rank
        self.ranks = ranks
        self.epoch = 0
        self.first = 0
        self.lengths: list[int] | None = None

    def group_by_length(self, lengths: list[int], together: int) -> None:
        """From now on each `together` rows, one optimizer step, are of about the same length, as by
        transformers.LengthGroupedSampler; the longest row comes first. lengths: of the rows."""
        self.lengths = lengths
        self.together = together

    def __len__(self) -> int:
        return math.ceil(self.count / (self.per_rank * self.ranks))

    def sizes(self, index: int) -> tuple[int, int]:
        """(rows of this rank, rows of all ranks) in a micro-batch of an epoch."""
        total = min(self.per_rank * self.ranks, self.count - index * self.per_rank * self.ranks)
        share, remainder = divmod(total, self.ranks)
        if self.rank < remainder:
            share += 1
        return share, total

    def order(self) -> list[int]:
        """The rows of the epoch in their order, of all ranks."""
        if self.seed is None:
            return list(range(self.count))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        if self.lengths is not None:
            return get_length_grouped_indices(self.lengths, self.together, generator=generator)
        return torch.randperm(self.count, generator=generator).tolist()

    def everywhere(self, order: Sequence[int], index: int) -> Sequence[int]:
        """The rows of all ranks in a micro-batch. order: from `order`."""
        begin = index * self.per_rank * self.ranks
        return order[begin : begin + self.per_rank * self.ranks]

    def __iter__(self) -> Iterator[list[int]]:
        order = self.order()
        for index in range(self.first, len(self)):
            yield self.own(order, index)

    def own(self, order: Sequence[int], index: int) -> list[int]:
        """The rows of this rank in a micro-batch; the first of all where it has none."""
        rows, total = self.sizes(index)
        share, remainder = divmod(total, self.ranks)
        begin = self.rank * share + min(self.rank, remainder)
        return list(self.everywhere(order, index)[begin : begin + rows]) or [order[0]]


class BatchLoader:
    """Batches of one rank on its device, one epoch per iteration. Does not advance the global random generators.

    rows: a map-style dataset. collate: rows -> dict of tensors. figures: of the rows; None if all are even (`Batch`).
    waited_seconds: that this process has spent until batches were there, without their copy to the device.
    """

    def __init__(
        self,
        rows: Any,
        collate: Callable[[list[dict]], dict[str, torch.Tensor]],
        args: TrainingArguments,
        sampler: DistributedBatchSampler,
        figures: RowFigures | None,
        keep_workers: bool = True,
        masking: Masking | None = None,
    ):
        self.masking = masking
        self.device = args.device
        self.figures = figures
        self.waited_seconds = 0.0
        self.batch_sampler = sampler  # the Trainer reads this attribute
        self._loader = DataLoader(
            rows,
            batch_sampler=sampler,  # type: ignore[arg-type]  (any iterable of lists of indices)
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            persistent_workers=args.dataloader_persistent_workers and keep_workers,
            pin_memory=args.dataloader_pin_memory,
            generator=torch.Generator().manual_seed(args.seed if args.data_seed is None else args.data_seed),
        )

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration, which determines its order."""
        self.batch_sampler.epoch = epoch

    def skip(self, batches: int) -> None:
        """Skips the first micro-batches of the next epoch without reading them."""
        self.batch_sampler.first = batches

    def __iter__(self) -> Iterator[Batch]:
        order = self.batch_sampler.order()
        for index, tensors in enumerate(self._timed(), self.batch_sampler.first):
            indices = self.batch_sampler.own(order, index)
            if self.masking is not None:  # not in the loader's workers, which do not know the epoch
                self.masking(tensors, self.batch_sampler.epoch, indices)
            batch = Batch({key: value.to(self.device, non_blocking=True) for key, value in tensors.items()})
            batch.rows, batch.rows_everywhere = self.batch_sampler.sizes(index)
            batch.indices = indices
            batch.ranks = self.batch_sampler.ranks
            batch.even = self.figures is None
            batch.samples_everywhere = batch.rows_everywhere
            batch.unpadded_everywhere = batch.rows_everywhere * batch["input_ids"].shape[1]
            if self.figures is not None:
                chosen = self.batch_sampler.everywhere(order, index)
                batch.samples_everywhere = int(self.figures.samples[chosen].sum())
                batch.unpadded_everywhere = int(self.figures.tokens[chosen].sum())
            yield batch
        self.batch_sampler.first = 0

    def _timed(self) -> Iterator[dict[str, torch.Tensor]]:
        """The loader's batches. The start of its workers counts as well."""
        began = time.perf_counter()
        with signals.blocked():  # in the loader's workers, which a cluster's signal would end
            batches = iter(self._loader)
        for tensors in batches:
            self.waited_seconds += time.perf_counter() - began
            yield tensors
            began = time.perf_counter()
