"""The documents of plain text in their order, and the blocks of them that are held out for the evaluation."""

import math

import datasets
import numpy

from legroom.data import text_data

Split = tuple[datasets.Dataset, datasets.Dataset | None, str]
BLOCKS = 10  # into which many documents are divided; the end of each is held out


def held_out(texts: datasets.Dataset, documents: str, fraction: float, shortest: int) -> Split:
    """(what to train on, what to evaluate on, a description of the split); None where there is too little text.

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
    is_held_out = numpy.zeros(count, dtype=bool)
    for first, last in zip(edges, edges[1:]):
        size = last - first
        taken = max(1, min(round(fraction * size), size - 1))
        is_held_out[last - taken : last] = True
    train = texts.select(numpy.flatnonzero(~is_held_out))
    evaluation = texts.select(numpy.flatnonzero(is_held_out))
    where = f"from the end of each of {parts} parts" if parts > 1 else "from the end"
    return train, evaluation, f"{len(evaluation):,} of {count:,} are held out, {where}"


def _ends(texts: datasets.Dataset, fraction: float, shortest: int) -> Split:
    """`held_out` with the end of each text."""
    begins = []
    ends = []
    for text in texts["text"]:
        cut = _place_to_cut(text, math.floor((1 - fraction) * len(text)))
        if cut > 0 and len(text) - cut >= shortest:
            begins.append(text[:cut])
            ends.append(text[cut:])
        else:
            begins.append(text)
    if not ends:
        return texts, None, ""
    which = "each" if len(ends) == len(begins) else f"{len(ends):,} of them"
    description = f"the last {fraction:.0%} of {which} is held out"
    return text_data.dataset({"text": begins}), text_data.dataset({"text": ends}), description


def _place_to_cut(text: str, place: int) -> int:
    """Where the next line or word begins, unless that is far away."""
    far = place + (len(text) - place) // 2
    for separator in ("\n", " "):
        next_separator = text.find(separator, place, far)
        if next_separator >= 0:
            return next_separator + 1
    return place
