"""parallelism.context: every family that is allowed computes the same loss and gradients with shared out tokens."""

from __future__ import annotations

import context_ranks
import pytest

from legroom.options import model_families

FEW = ["deepseek_v2", "gemma3_text", "gpt2"]  # keys wider than values; windows; learned positions
OTHERS = sorted(model_families.CONTEXT - {*FEW})


@pytest.mark.parametrize("kinds", [FEW, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["few", "others"])
def test_two_ranks_compute_what_one_computes(kinds, tmp_path):
    """Bart counts positions itself: the comparison can fail."""
    found = context_ranks.compare([*kinds, "bart"], tmp_path)
    assert "differs by" in found.pop("bart")
    assert found == dict.fromkeys(kinds, "")
