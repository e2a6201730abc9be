"""What an estimate advises, held to what `fit` finds: six models on three cards."""

from __future__ import annotations

import advice_against_fit
import pytest
from advice_against_fit import CARDS, MODELS


@pytest.mark.slow
@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("model", MODELS)
def test_the_advice_fits_and_fit_finds_no_better(model, card):
    case = advice_against_fit.check(model, card, MODELS[model])
    assert case is None or (case.found and not case.wrong)
