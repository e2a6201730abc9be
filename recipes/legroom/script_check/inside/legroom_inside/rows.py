"""The longest batch of a script: where rows differ in length, a step on it takes the most memory.

The batches are the script's own: its sampler's and batch sampler's, through its collator. The one with the largest rows
is read once more when the usual steps are over.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping

import torch
from torch.utils.data import DataLoader

STEPS = 2  # on the longest batch: some loops have read the batch of the next step already
MOST_ROWS = 20000  # that are looked at
MOST_SECONDS = 3.0  # of looking


class Rows:
    """Notes what is read. say: takes a note."""

    def __init__(self, say):
        self.say = say
        self.sizes = []  # elements of the batches that were read
        self.counts = []  # rows of the loaders that they came from
        self.loader = None  # that was read last
        self.next_batch = None  # that is to be read from now on
        self.is_looking = False

    def install(self):
        """Read batches through this object."""
        iterate = DataLoader.__iter__
        rows = self

        def begin(loader):
            return _Batches(iterate(loader), loader, rows)

        DataLoader.__iter__ = begin

    def read(self, loader, batch):
        """Note the size of a batch. Returns the batch to be trained on."""
        if self.is_looking:
            return batch
        if self.next_batch is not None and loader is self.loader:
            if isinstance(self.next_batch, (Mapping, list)):  # from which the script may take the labels
                return copy.copy(self.next_batch)
            return self.next_batch
        self.loader = loader
        self.sizes.append(elements_of(batch))
        self.counts.append(_rows_of(loader))
        return batch

    def smaller_batch(self):
        """(rows of a batch now, rows at first) where a script goes on with smaller batches; otherwise None."""
        if not self.counts:
            return None
        first = self.counts[0]
        last = self.counts[-1]
        if first is None or last is None or last >= first:
            return None
        return last, first

    def follow_longest(self):
        """Whether the next steps are on the longest batch of the script, which has read smaller ones so far."""
        if not self.sizes:
            return False
        longest = self._longest()
        few = min(self.sizes)
        many = max(self.sizes)
        if longest is None:
            if few == many:
                self.say("whether other rows are longer is not known: the script's data cannot be looked through.")
            else:
                self.say(f"the batches that were read have {few:,} to {many:,} elements; larger ones take more.")
            return False
        batch, looked = longest
        size = elements_of(batch)
        if size <= many:
            if few == many:
                return False
            self.say(f"the largest batch of {looked:,} rows is not larger than those that were read.")
            return False
        self.next_batch = batch
        self.say(
            f"memory is that of a step on the largest batch of {looked:,} rows, {size:,} elements; the batches that "
            f"were read have {few:,} to {many:,}, and the time is theirs."
        )
        return True

    def _longest(self):
        """(the largest batch, how many rows were looked at); None where it cannot be known."""
        loader = self.loader
        sampler = getattr(loader, "batch_sampler", None)
        dataset = getattr(loader, "dataset", None)
        if sampler is None or not hasattr(dataset, "__getitem__"):
            return None
        self.is_looking = True
        sizes = {}  # of the rows, by their index
        longest = None
        most = -1
        end = time.monotonic() + MOST_SECONDS
        try:
            for indices in sampler:
                for index in indices:
                    if index not in sizes:
                        sizes[index] = elements_of(dataset[index])
                size = max(sizes[index] for index in indices) * len(indices)  # rows are padded to the longest
                if size > most:
                    longest = list(indices)
                    most = size
                if len(sizes) >= MOST_ROWS or time.monotonic() > end:
                    break
            if longest is None:
                return None
            return loader.collate_fn([dataset[index] for index in longest]), len(sizes)
        except Exception:  # of the script's own code, in an order that it need not know
            return None
        finally:
            self.is_looking = False


def _rows_of(loader):
    """How many rows a loader puts into a batch; None where it does not say."""
    count = getattr(loader, "batch_size", None)
    if count is None:  # as accelerate makes its loaders
        count = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return count


class _Batches:
    """The iterator of a DataLoader, whose batches are noted."""

    def __init__(self, iterator, loader, rows):
        self.__dict__.update(iterator=iterator, loader=loader, rows=rows)

    def __iter__(self):
        return self

    def __next__(self):
        return self.rows.read(self.loader, next(self.iterator))

    def __len__(self):
        return len(self.iterator)

    def __getattr__(self, name):
        return getattr(self.iterator, name)

    def __setattr__(self, name, value):
        setattr(self.iterator, name, value)


def elements_of(value):
    """How large a batch or a row is: the elements of its tensors, the lengths of its texts and lists."""
    if isinstance(value, torch.Tensor) or hasattr(value, "shape"):
        return math.prod(int(size) for size in value.shape)
    if isinstance(value, Mapping):
        return sum(elements_of(element) for element in value.values())
    if hasattr(value, "data") and isinstance(value.data, Mapping):  # transformers' BatchEncoding
        return elements_of(value.data)
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (int, float)):
            return len(value)
        return sum(elements_of(element) for element in value)
    if isinstance(value, (str, bytes)):
        return len(value)
    return 0
