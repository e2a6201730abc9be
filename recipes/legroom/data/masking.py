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
# How byte-level BPE and SentencePiece write the space before a word, line breaks and tabs. č is a letter in the latter.
BYTE_LEVEL_SPACE = "Ġ"
BYTE_LEVEL_BREAKS = ("Ċ", "ĉ", "č")
SENTENCEPIECE_SPACE = "▁"
SENTENCEPIECE_BREAKS = ("<0x0A>", "<0x09>", "<0x0D>", "\n", "\t", "\r")
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
        places = places[places > 0]
        if len(places) == 0:
            places = numpy.arange(1, length)
        count = max(1, round(self.share * length))
        words = self._words(ids, max(count, LONGEST_WORD))
        _, word_of, sizes = numpy.unique(words[places], return_inverse=True, return_counts=True)
        order = random.permutation(len(sizes))
        words_within_share = int((numpy.cumsum(sizes[order]) <= count).sum())
        taken = order[: max(1, words_within_share)]
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
    """(V,) each: whether a token of a vocabulary goes on with the word before it, and whether a word begins behind it.

    tokenizer: how it writes its tokens says so. vocab: V, of which the tokenizer may have fewer.
    """
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
    special_ids = set(tokenizer.all_special_ids)
    if any(token.startswith(BYTE_LEVEL_SPACE) for token in tokens):
        breaks = BYTE_LEVEL_BREAKS
    else:
        breaks = SENTENCEPIECE_BREAKS
    is_wordpiece = any(token.startswith("##") for token in tokens)
    continues = numpy.zeros(vocab, dtype=bool)
    breaks_behind = numpy.zeros(vocab, dtype=bool)
    for token_id, token in enumerate(tokens):
        if token_id in special_ids:
            breaks_behind[token_id] = True
            continue
        breaks_behind[token_id] = token.endswith(breaks)
        if is_wordpiece:
            continues[token_id] = token.startswith("##")
        else:
            continues[token_id] = not token.startswith((BYTE_LEVEL_SPACE, SENTENCEPIECE_SPACE, *breaks))
    return continues, breaks_behind
