"""Trainings by several ranks beside the same by one process."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file


def assert_trained_as_one(several, one) -> None:
    """Asserts that two `Run`s, which saved their models, have the same losses, evaluation and weights, to rounding."""
    losses = one.record.training.losses
    assert several.record.training.losses == pytest.approx(losses, rel=1e-5)
    assert several.record.training.tokens == one.record.training.tokens
    assert several.record.evaluation.loss == pytest.approx(one.record.evaluation.loss, rel=1e-5)
    assert several.record.evaluation.samples == one.record.evaluation.samples
    ours, theirs = (load_file(run.folder / "model" / "model.safetensors") for run in (several, one))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-6)


def assert_same_flops(several, one) -> None:
    """Asserts that the model FLOPs of a step are those of one process."""
    flops = one.record.speed.model_flops_per_step
    assert several.record.speed.model_flops_per_step == pytest.approx(flops, rel=1e-3)
