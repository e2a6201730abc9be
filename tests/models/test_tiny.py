"""Tiny models of any architecture: a layer of each kind is kept."""

from __future__ import annotations

import pytest

from recipes.models import tiny


@pytest.mark.parametrize(
    "kinds,kept",
    [
        (["full", "sliding", "full", "linear"], [0, 1, 3]),
        (["full", "full", "full"], [0, 1]),  # two layers at least
        (["full"], [0]),
        (["full", "full"], [0, 1]),
        (["full", "full", "sliding"], [0, 2]),
    ],
)
def test_the_first_layer_of_each_kind_is_kept(kinds, kept):
    assert tiny.distinct_layers([kinds, [None] * len(kinds)], len(kinds)) == kept


def test_a_layer_differs_by_any_of_its_lists():
    assert tiny.distinct_layers([["a", "a", "a"], [1, 1, 2]], 3) == [0, 2]
