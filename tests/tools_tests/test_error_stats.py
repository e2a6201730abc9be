"""Statistics of signed errors."""

from __future__ import annotations

import pytest
from error_stats import rank_correlation, signed, summary


def test_an_error_is_below_zero_where_too_little_was_predicted():
    assert signed(90, 100) == pytest.approx(-0.1) and signed(110, 100) == pytest.approx(0.1)
    assert signed(None, 100) is None and signed(100, None) is None and signed(100, 0) is None


def test_the_summary_keeps_the_sign_of_the_worst():
    total = summary([0.01, -0.04, None, 0.02])
    assert (total.count, total.median_size, total.median, total.worst) == (3, 0.02, 0.01, -0.04)
    assert summary([None]) is None


@pytest.mark.parametrize(
    "pairs,expected",
    [
        ([(1, 10), (2, 100), (3, 1000)], 1.0),
        ([(1, 3), (2, 2), (3, 1)], -1.0),
        ([(1, 1), (2, 3), (3, 2), (4, 4)], 0.8),  # 1 - 6 * 2 / (4 * 15)
        ([(1, 1), (1, 2), (2, 3)], 0.8660254),  # ties share their rank
    ],
)
def test_ranks_alone_count(pairs, expected):
    assert rank_correlation(pairs) == pytest.approx(expected)


def test_no_correlation_where_nothing_can_be_ordered():
    assert rank_correlation([]) is None and rank_correlation([(1, 2)]) is None
    assert rank_correlation([(1, 1), (1, 2)]) is None
