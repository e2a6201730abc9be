"""The seconds of all steps of a training from those of a few, by the work of their rows (`run_schedule`)."""

import itertools

import numpy


def seconds_of(work: numpy.ndarray, simulated: numpy.ndarray, seconds: numpy.ndarray) -> numpy.ndarray:
    """(S,): the seconds of steps, from those of a few.

    work: (S, 3), of the steps. simulated: (D, 3), of those with known seconds, (D,). The seconds are taken to be a sum
    of a part for each micro-batch, one for each position and one for each square of a row's length, none of them
    negative, with the least sum of squared relative errors.
    """
    best = numpy.zeros(3)
    least = numpy.inf
    for chosen in _subsets(simulated):
        columns = simulated[:, chosen] / seconds[:, None]
        factors, *_ = numpy.linalg.lstsq(columns, numpy.ones(len(seconds)), rcond=None)
        error = float(((columns @ factors - 1) ** 2).sum())
        if (factors < 0).any() or error >= least - 1e-12:
            continue
        least, best = error, numpy.zeros(3)
        best[chosen] = factors
    return work @ best


def _subsets(simulated: numpy.ndarray) -> list[list[int]]:
    """Columns of the work, in the order in which they are tried: as few as possible, and no more than steps of
    different work. The positions come first: of steps that are all alike they tell what a shorter one takes."""
    different = len(numpy.unique(simulated, axis=0))
    subsets = []
    for count in range(1, min(3, different) + 1):
        for columns in itertools.combinations((1, 0, 2), count):
            subsets.append(list(columns))
    return subsets
