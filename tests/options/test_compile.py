"""compile: the same training, and what it needs."""

from __future__ import annotations

import shutil

import pytest
from conftest import compose, small

from recipes.machine import host


@pytest.mark.slow
def test_compiled_training_loses_the_same_in_both_recipes(train):
    """Or is refused in words, where there is no compiler."""
    words = ["model=gpt2_tiny", "train.max_steps=4", "measure.warmup_steps=1"]
    if host.compiler() is None:
        assert "compile=true" in "\n".join(compose(*small(*words, "compile=true")).problems)
        return
    plain, ours, theirs = (
        train(*words, f"recipe={recipe}", f"compile={value}").record
        for recipe, value in (("trainer", "false"), ("trainer", "true"), ("accelerate", "true"))
    )
    assert ours.training.losses == pytest.approx(plain.training.losses, rel=1e-4)
    assert theirs.training.losses == pytest.approx(ours.training.losses, rel=1e-5)
    for record in (ours, theirs):
        assert record.memory.peak_tensor_bytes == pytest.approx(plain.memory.peak_tensor_bytes, rel=0.01)
        assert record.speed.model_flops_per_step == plain.speed.model_flops_per_step
        # The step in which the code was compiled took seconds, and is left out.
        assert record.speed.step_seconds_p90 < record.speed.train_seconds / 4
        assert record.evaluation.loss == pytest.approx(plain.evaluation.loss, rel=1e-4)


def test_compile_without_a_compiler_is_refused(monkeypatch):
    monkeypatch.setattr(host, "compiler", lambda: None)
    (line,) = compose("device=cpu", "compile=true").problems
    assert "compile=true" in line and "g++" in line and "leave compile out" in line


def test_compile_on_a_gpu_needs_triton_and_a_c_compiler(pretend_gpu, monkeypatch):
    pretend_gpu((9, 0))
    monkeypatch.setattr(host, "has", lambda module: module != "triton")
    assert "pip install triton" in "\n".join(compose("compile=true").problems)
    monkeypatch.setattr(host, "has", lambda module: True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "C compiler" in "\n".join(compose("compile=true").problems)
