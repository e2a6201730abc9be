"""parallelism.context: every family that is allowed computes the same loss and gradients with shared out tokens."""

from __future__ import annotations

import context_ranks
import pytest

from legroom.errors import Refusal
from legroom.options import model_families
from legroom.parallelism import context

FEW = ["deepseek_v2"]  # keys wider than values
OTHERS = sorted(model_families.CONTEXT - {*FEW})


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [FEW, OTHERS], ids=["few", "others"])
def test_two_ranks_compute_what_one_computes(kinds, tmp_path):
    """Bart counts positions itself: the comparison can fail."""
    found = context_ranks.compare([*kinds, "bart"], tmp_path)
    assert "differs by" in found.pop("bart")
    assert found == dict.fromkeys(kinds, "")


def test_a_loss_of_routers_is_refused():
    config = context_ranks.tiny.tiny_configuration("mixtral", context_ranks.TASK)
    context.check(context_ranks.RANKS, "mixtral", config, context_ranks.TASK)
    config.output_router_logits = True
    with pytest.raises(Refusal, match="routers' loss"):
        context.check(context_ranks.RANKS, "mixtral", config, context_ranks.TASK)
