"""The private names of peft behave as legroom.compat.peft_private says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")

from legroom.compat import peft_private


@pytest.mark.parametrize(
    "family, names",
    [
        ("mixtral", {"gate", "w1", "w2", "w3"}),
        ("qwen3_moe", {"gate", "gate_proj", "up_proj", "down_proj"}),
        ("gpt_oss", set()),
        ("llama", set()),
    ],
)
def test_names_of_experts(family, names):
    assert peft_private.names_of_experts(SimpleNamespace(config=SimpleNamespace(model_type=family))) == names
