"""What an estimate advises, held to what `fit` finds: six models on three cards, and the judgement itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import advice_against_fit
import pytest
from advice_against_fit import CARDS, MODELS, Case

from legroom.records.record import Speed


@pytest.mark.slow
@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("model", MODELS)
def test_the_advice_fits_and_fit_finds_no_better(model, card):
    case = advice_against_fit.check(model, card, MODELS[model])
    assert case is None or (case.found and not case.wrong)


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([(["a"], 1.0, 2)], ""),
        ([(["a"], 0.995, 2)], ""),
        ([(["a"], 0.995, 1)], "simpler: a"),
        ([(["a"], 1.2, 0), (["b"], 0.9, 4)], "faster: b"),
        ([], "fit finds nothing"),
    ],
)
def test_fit_beats_advice_that_is_slower_or_as_fast_and_less_simple(rows, wrong):
    record: Any = SimpleNamespace(speed=Speed(step_seconds_median=1.0))
    found: Any = SimpleNamespace(record=record)
    case = Case("a model", "a card", [found])
    advice_against_fit._is_not_beaten(case, 2, rows)
    assert wrong in " ".join(case.wrong) and bool(wrong) == bool(case.wrong)
