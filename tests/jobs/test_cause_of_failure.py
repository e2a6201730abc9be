"""What a supervisor does about workers that end, fail or hang: made-up workers, and a clock that is moved on."""

from __future__ import annotations

import pytest

from legroom.jobs import supervise
from legroom.records.messages import RankFailed
from legroom.records.record import Error


def failed(rank: int, lost: bool = False, status: str = "failed") -> RankFailed:
    return RankFailed(status, Error("step", "ValueError", f"of rank {rank}", rank=rank), lost)


@pytest.mark.parametrize(
    "reported,codes,rank",
    [
        ([], {0: 0, 1: 0}, None),
        ([failed(1), failed(0)], {0: 1, 1: 1}, 1),
        ([failed(0, lost=True), failed(1)], {}, 1),
        ([failed(0, lost=True)], {0: 1, 1: 0}, 0),
        ([failed(0, lost=True)], {0: 1, 1: -9}, 1),
        ([failed(0, lost=True), failed(2, lost=True)], {0: 1, 2: 1}, 0),
        ([], {0: 0, 2: 3, 1: 7}, 1),
    ],
)
def test_cause_is_the_first_real_failure(reported, codes, rank):
    found = supervise.find_cause(reported, codes)
    assert (None if found is None else found.error.rank) == rank
    if not reported and rank is not None:
        assert (found.status, found.error.type, found.error.phase) == ("failed", "WorkerDied", "step")
