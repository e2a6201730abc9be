"""The documents of plain text in their order, and the blocks of them that are held out for the evaluation."""

import math

import datasets
import numpy

from legroom.data import text_data

Split = tuple[datasets.Dataset, datasets.Dataset | None, str]
BLOCKS = 10  # into which many documents are divided; the end of each is held out


def held_out(texts: datasets.Dataset, documents: str, fraction: float, shortest: int) -> Split:
    """(what to train on, what to evaluate on, what was done); None where there is too little text.

    documents: file, blank_line or line. Whole documents are held out, from the end of each of BLOCKS parts; where that
    would take too large a part, because there are few files, the end of each file. fraction: of the documents, or of
    their characters. shortest: an end of fewer characters is not held out.
    """
    count = len(texts)
    if documents == "file" and count * fraction < 1:
        return _ends(texts, fraction, shortest)
    if count < 2:
        return texts, None, ""
    parts = max(1, min(BLOCKS, int(count * min(fraction, 1 - fraction))))
    edges = numpy.linspace(0, count, parts + 1).astype(int)
    chosen = numpy.zeros(count, dtype=bool)
    for first, last in zip(edges, edges[1:]):
        chosen[last - max(1, min(round(fraction * (last - first)), last - first - 1)) : last] = True
    kept, taken = texts.select(numpy.flatnonzero(~chosen)), texts.select(numpy.flatnonzero(chosen))
    blocks = f"from the end of each of {parts} parts" if parts > 1 else "from the end"
    return kept, taken, f"{len(taken):,} of {count:,} are held out, {blocks}"


def _ends(texts: datasets.Dataset, fraction: float, shortest: int) -> Split:
    begins, ends = [], []
    for text in texts["text"]:
        cut = _place_to_cut(text, math.floor((1 - fraction) * len(text)))
        enough = len(text) - cut >= shortest and cut > 0
        begins.append(text[:cut] if enough else text)
        ends += [text[cut:]] * enough
    if not ends:
        return texts, None, ""
    said = f"the last {fraction:.0%} of {'each' if len(ends) == len(begins) else f'{len(ends):,} of them'} is held out"
    return text_data.dataset({"text": begins}), text_data.dataset({"text": ends}), said


def _place_to_cut(text: str, place: int) -> int:
    """Where the next line or word begins, unless that is far away."""
    far = place + (len(text) - place) // 2
    return next((found + 1 for mark in "\n " if (found := text.find(mark, place, far)) >= 0), place)
