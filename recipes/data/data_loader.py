"""recipes.data.data_loader"""

from __future__ import annotations

from collections.abc import Iterator

from recipes.data import collate, dataset


def batch_loader(data: dataset.Data, part, args, batch: int, shuffle: bool):
    """This rank's batches of `part` (rows of the data), the same for both recipes.

    args: TrainingArguments, whose seed decides the order. batch: rows in one forward pass of one process.
    """
    from recipes.data.data_loader import BatchLoader, DistributedBatchSampler

    order = DistributedBatchSampler(len(part), batch, args.data_seed if shuffle else None, data.rank, data.ranks)
    even = data.collate is collate.stack  # rows of one length, and no label among them that the loss leaves out
    return BatchLoader(part, data.collate, args, order, even, keep_workers=shuffle)


def largest_step(data: dataset.Data, args):
    """Batches of the one optimizer step that takes the most memory: the longest rows there are.

    In the order of the data where all are equally long.
    """
    count = min(args.train_batch_size * data.ranks * args.gradient_accumulation_steps, len(data.train))
    chosen = range(count)
    if data.collate is not collate.stack:
        import numpy
        import pyarrow

        lengths = pyarrow.compute.list_value_length(data.train.with_format("arrow")["input_ids"]).to_numpy()
        chosen = numpy.argsort(-lengths, kind="stable")[:count].tolist()
    return batch_loader(data, data.train.select(chosen), args, args.train_batch_size, shuffle=False)


class Batch(dict):
    """What a model is called with, on its device, and what it stands for in the whole micro-batch.

    rows: of this rank; 0 where the rows only stand in for none, so that every rank takes every step.
    rows_everywhere: of all `ranks` together. even: every row has as many tokens and labels as any other.
    """

    rows: int
    rows_everywhere: int
    ranks: int
    even: bool


class DistributedBatchSampler:
    """Lists of row numbers, one for each micro-batch of one rank. A batch sampler for a DataLoader.

    count: rows in all. per_rank: rows of a full micro-batch on one rank. seed: None keeps the rows in order.
    first: micro-batches at the start of the epoch that are left out, for a training that goes on.
    """

    def __init__(self, count: int, per_rank: int, seed: int | None, rank: int = 0, ranks: int = 1):
        self.count, self.per_rank, self.seed, self.rank, self.ranks = count, per_rank, seed, rank, ranks
        self.epoch = self.first = 0

    def __len__(self) -> int:
        return -(-self.count // (self.per_rank * self.ranks))

    def sizes(self, index: int) -> tuple[int, int]:
        """(rows of this rank, rows of all ranks) in a micro-batch of an epoch."""
        whole = min(self.per_rank * self.ranks, self.count - index * self.per_rank * self.ranks)
        share, left = divmod(whole, self.ranks)
        return share + (self.rank < left), whole

    def __iter__(self) -> Iterator[list[int]]:
        import torch

        if self.seed is None:
            order = range(self.count)
        else:
            random = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.count, generator=random).tolist()
        for index in range(self.first, len(self)):
            begin = index * self.per_rank * self.ranks
            rows, whole = self.sizes(index)
            share, left = divmod(whole, self.ranks)
            begin += self.rank * share + min(self.rank, left)
            yield list(order[begin : begin + rows]) or [order[0]]


class BatchLoader:
    """Batches of one rank on its device, an epoch at a time. Draws from no random numbers that training uses.

    rows: a data set; collate: rows -> dict of tensors; args: TrainingArguments; even: as a batch has it.
    """

    def __init__(self, rows, collate, args, order: DistributedBatchSampler, even: bool, keep_workers: bool = True):
        import torch

        self.order, self.device, self.even = order, args.device, even
        self.batch_sampler = order  # where the Trainer looks for it
        self._loader = torch.utils.data.DataLoader(
            rows,
            batch_sampler=order,
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            persistent_workers=args.dataloader_persistent_workers and keep_workers,
            pin_memory=args.dataloader_pin_memory,
            generator=torch.Generator().manual_seed(args.data_seed),
        )

    def __len__(self) -> int:
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose order comes next."""
        self.order.epoch = epoch

    def skip(self, batches: int) -> None:
        """Leave out the first micro-batches of the next epoch, without reading them."""
        self.order.first = batches

    def __iter__(self) -> Iterator[Batch]:
        first = self.order.first
        for index, tensors in enumerate(self._loader, first):
            batch = Batch({key: value.to(self.device, non_blocking=True) for key, value in tensors.items()})
            batch.rows, batch.rows_everywhere = self.order.sizes(index)
            batch.ranks, batch.even = self.order.ranks, self.even
            yield batch
        self.order.first = 0
