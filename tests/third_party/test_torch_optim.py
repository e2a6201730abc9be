"""What recipes/third_party/torch_optim_private.py replaces is still what torch calls."""

from __future__ import annotations

import torch
from torch.optim import adam

from recipes.third_party import torch_optim_private


def test_softmax_is_replaced_and_restored():
    original = torch.nn.functional.softmax
    with torch_optim_private.softmax_replaced(lambda *_, **__: "another"):
        assert torch.nn.functional.softmax(torch.ones(1), dim=-1) == "another"
    assert torch.nn.functional.softmax is original


def test_gradients_are_kept_as_zeros():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.ones(2)
    with torch_optim_private.gradients_kept_as_zeros():
        optimizer.zero_grad()
    assert weight.grad is not None and not weight.grad.any()
    optimizer.zero_grad()
    assert weight.grad is None


def test_adamw_asks_which_implementation_to_take(monkeypatch):
    """With the replacement, the loop over single tensors runs; without it, torch asks its own function."""
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer, called = torch.optim.AdamW([weight]), []
    loop = adam._single_tensor_adam
    monkeypatch.setattr(adam, "_single_tensor_adam", lambda *a, **k: called.append("loop") or loop(*a, **k))
    asked = adam._default_to_fused_or_foreach
    monkeypatch.setattr(adam, "_default_to_fused_or_foreach", lambda *a, **k: called.append("asked") or asked(*a, **k))
    with torch_optim_private.adam_without_foreach():
        optimizer.step()
    assert called == ["loop"]
    optimizer.step()
    assert "asked" in called[1:]
