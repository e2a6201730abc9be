"""Whether what a step reserves fits what a GPU has, and with how much to spare. Imports no torch."""

import math
from dataclasses import dataclass

FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"


@dataclass(frozen=True)
class Verdict:
    """word: FITS, TIGHT (less than kept_bytes stay free) or DOES_NOT_FIT.

    left_bytes: what stays free of the device's memory; negative: how much is missing. kept_bytes: what FITS keeps free.
    """

    word: str
    left_bytes: int
    kept_bytes: int

    @property
    def fits(self) -> bool:
        return self.word == FITS


def judge(left_bytes: int, reserved_bytes: int, margin: float, lacking_bytes: int = 0) -> Verdict:
    """The verdict on a step that reserves reserved_bytes and leaves left_bytes free.

    Measured memory exceeds a prediction now and then, so that FITS keeps free a share of the reserved memory (margin)
    and beside it what batches of different lengths lacked where just reserved_bytes were there (lacking_bytes). A
    margin of 0 keeps nothing.
    """
    kept_bytes = 0
    if margin:
        kept_bytes = math.ceil(margin * reserved_bytes) + lacking_bytes
    if left_bytes < 0:
        word = DOES_NOT_FIT
    elif left_bytes < kept_bytes:
        word = TIGHT
    else:
        word = FITS
    return Verdict(word, left_bytes, kept_bytes)
