"""parallelism=pipeline: every family that is allowed computes the same loss and gradients in two parts."""

from __future__ import annotations

import pipeline_ranks
import pytest

from legroom.errors import Refusal
from legroom.options import model_families
from legroom.parallelism import pipeline

FEW = ["gemma2"]  # windows, scaled embeddings and capped logits
OTHERS = sorted(model_families.PIPELINE - {*FEW})


@pytest.mark.parametrize("kinds", [FEW, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["few", "others"])
def test_two_ranks_compute_what_one_computes(kinds, tmp_path):
    """OPT registers its last norm before its layers: the comparison can fail."""
    found = pipeline_ranks.compare([*kinds, "opt"], tmp_path)
    assert found.pop("opt")
    assert found == dict.fromkeys(kinds, "")


def test_a_loss_of_routers_and_another_task_are_refused():
    config = pipeline_ranks.tiny.tiny_configuration("mixtral", pipeline_ranks.TASK)
    pipeline.check("mixtral", config, pipeline_ranks.TASK)
    with pytest.raises(Refusal, match="task here is classification"):
        pipeline.check("mixtral", config, "classification")
    config.output_router_logits = True
    with pytest.raises(Refusal, match="routers' loss"):
        pipeline.check("mixtral", config, pipeline_ranks.TASK)
