"""A model whose kernels are not installed is estimated by its Python, and a note says so."""

import pytest
import tiny

from legroom.foresight import fallbacks
from legroom.machine import host


@pytest.mark.parametrize(
    "kind, package", [("apertus", "xielu"), ("mamba", "causal-conv1d"), ("qwen3_5_text", "linear"), ("llama", None)]
)
def test_kernels_that_are_not_here_are_said(kind, package, monkeypatch):
    monkeypatch.setattr(host, "has", lambda module: False)
    found = fallbacks.notes(tiny.tiny_model(kind, "language_modelling"))
    assert len(found) == (package is not None) and (package is None or package in found[0]), found
