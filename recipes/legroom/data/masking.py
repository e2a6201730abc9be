"""Masks of masked language modelling, as BERT draws them (Devlin et al. 2018, arXiv 1810.04805): a share of a row's
tokens is predicted; of ten, eight are replaced by the mask, one by any token, and one stays.

The masks of a row follow from the seed, the epoch and the row alone: they are the same in both recipes, on any number
of ranks and after a resume, and others in each epoch.
"""

from dataclasses import dataclass
from typing import Any

import numpy
import torch

from legroom.data.collate import IGNORE_INDEX

SHARE = 0.15  # BERT's; ModernBERT takes 0.3
MARKS = ("Ġ", "▁")  # with which tokens of byte-level BPE and of SentencePiece begin a word
# Line breaks and tabs, as both write them. In SentencePiece č is a letter.
BREAKS = {True: ("Ċ", "ĉ", "č"), False: ("<0x0A>", "<0x09>", "<0x0D>", "\n", "\t", "\r")}
LONGEST_WORD = 16  # tokens; of scripts without blanks a row is one word, of which no more than its share is predicted


@dataclass(frozen=True)
class Masking:
    """mask_id: the id that hides a token. vocab: ids below it may replace one. special: ids that are never predicted.
    continues: (V,) whether a token goes on with the word before it; None: each token is masked on its own. breaks: (V,)
    whether a word begins behind a token in any case."""

    mask_id: int
    vocab: int
    special: tuple[int, ...]
    share: float
    seed: int
    continues: numpy.ndarray | None = None
    breaks: numpy.ndarray | None = None

    def __call__(self, batch: dict[str, torch.Tensor], epoch: int, rows: list[int]) -> None:
        """Masks the ids of a batch on the CPU, in place; the labels, which are the ids, stay for those alone.

        rows: the numbers of the batch's rows in the data.
        """
        for ids, labels, row in zip(batch["input_ids"].numpy(), batch["labels"].numpy(), rows):
            random = numpy.random.default_rng([self.seed, epoch, row])
            chosen = self._chosen(ids, int((labels != IGNORE_INDEX).sum()), random)
            kept = ids[chosen]
            labels[:] = IGNORE_INDEX
            labels[chosen] = kept
            fate = random.random(len(chosen))
            others = random.integers(self.vocab, size=len(chosen))
            ids[chosen] = numpy.where(fate < 0.8, self.mask_id, numpy.where(fate < 0.9, others, kept))

    def _chosen(self, ids: numpy.ndarray, length: int, random: numpy.random.Generator) -> numpy.ndarray:
        """The places that are predicted, at least one. The first never is: losses here have no label for it.

        length: of the row without padding.
        """
        places = numpy.flatnonzero(~numpy.isin(ids[:length], self.special))
        places = places[places > 0] if len(places) > (places[:1] == 0).sum() else numpy.arange(1, length)
        count = max(1, round(self.share * length))
        group = self._words(ids, max(count, LONGEST_WORD))
        _, word_of, sizes = numpy.unique(group[places], return_inverse=True, return_counts=True)
        order = random.permutation(len(sizes))
        taken = order[: max(1, int((numpy.cumsum(sizes[order]) <= count).sum()))]
        return places[numpy.isin(word_of, taken)]

    def _words(self, ids: numpy.ndarray, longest: int) -> numpy.ndarray:
        """(T,) the number of each token's word; one of more than `longest` tokens is several."""
        places = numpy.arange(len(ids))
        if self.continues is None:
            return places
        begins = ~self.continues[ids]
        if self.breaks is not None:
            begins[1:] |= self.breaks[ids[:-1]]
        first = numpy.maximum.accumulate(numpy.where(begins, places, 0))
        return numpy.cumsum(begins | ((places - first) % longest == 0))


def continuing(tokenizer: Any, vocab: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """(V,) each: whether a token of a vocabulary goes on with the word before it, and whether one begins behind it, by
    how tokenizers write them."""
    written = [str(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
    special = set(tokenizer.all_special_ids)
    breaks = BREAKS[any(token.startswith(MARKS[0]) for token in written)]
    found = [token.startswith("##") for token in written]
    if not any(found):
        found = [not token.startswith((*MARKS, *breaks)) for token in written]
    found = [each and number not in special for number, each in enumerate(found)]
    behind = [token.endswith(breaks) or number in special for number, token in enumerate(written)]
    padding = [False] * (vocab - len(found))
    return numpy.array(found + padding), numpy.array(behind + padding)
