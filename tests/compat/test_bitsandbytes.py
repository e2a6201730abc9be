"""The undocumented names of bitsandbytes behave as legroom.compat.bitsandbytes_private says."""

from __future__ import annotations

import pytest

pytest.importorskip("bitsandbytes")

import torch
from bitsandbytes import functional
from bitsandbytes.optim import AdamW8bit, GlobalOptimManager

from legroom.compat import bitsandbytes_private


def test_replaced_paged_memory():
    def get_paged(*shape, dtype=None, device=None):
        return shape

    original = functional.get_paged, functional.fill, functional.prefetch_tensor
    with bitsandbytes_private.replaced_paged_memory(get_paged):
        assert functional.get_paged(2, 3) == (2, 3)
        assert functional.fill(None, 0) is None and functional.prefetch_tensor(None) is None
    assert (functional.get_paged, functional.fill, functional.prefetch_tensor) == original


def test_clear_overrides():
    weight = torch.nn.Parameter(torch.ones(2))
    manager = GlobalOptimManager.get_instance()
    manager.override_config(weight, "optim_bits", 32)
    assert manager.pid2config
    bitsandbytes_private.clear_overrides()
    assert not GlobalOptimManager.get_instance().pid2config and not manager.uses_config_override


def test_state_buffer():
    weight = torch.nn.Parameter(torch.ones(2, 3))
    state = bitsandbytes_private.state_buffer(AdamW8bit([weight]), weight, torch.uint8)
    assert (state.shape, state.dtype, state.count_nonzero().item()) == (weight.shape, torch.uint8, 0)


def test_state_buffer_of_a_paged_optimizer_comes_from_get_paged():
    """Where the weight is on a GPU and large enough; the meta device stands for the GPU."""
    weight = torch.nn.Parameter(torch.ones(400, 400, device="meta"))
    made = []

    def get_paged(*shape, dtype=None, device=None):
        made.append((shape, dtype, device.type))
        return torch.empty(shape, dtype=dtype, device=device)

    with bitsandbytes_private.replaced_paged_memory(get_paged):
        bitsandbytes_private.state_buffer(AdamW8bit([weight], is_paged=True), weight, torch.uint8)
    assert made == [((400, 400), torch.uint8, "meta")]


def test_step_of_one_weight():
    """In any order they make the step of all; a weight keeps the settings that it was given."""
    ours, theirs = ([torch.nn.Parameter(torch.ones(64, 128)) for _ in range(2)] for _ in range(2))
    for weight in (ours[1], theirs[1]):
        GlobalOptimManager.get_instance().override_config(weight, "optim_bits", 32)
    whole, apart = AdamW8bit(ours), AdamW8bit(theirs)
    step = bitsandbytes_private.step_of_one_weight(apart)
    for seed in range(3):
        torch.manual_seed(seed)
        for one, other in zip(ours, theirs):
            one.grad = other.grad = torch.randn(64, 128)
        whole.step()
        for weight in reversed(theirs):
            step(weight)
    for one, other in zip(ours, theirs):
        assert one.equal(other) and whole.state[one]["state1"].equal(apart.state[other]["state1"])
    assert apart.state[theirs[0]]["state1"].dtype == torch.uint8
    assert apart.state[theirs[1]]["state1"].dtype == torch.float32
    bitsandbytes_private.clear_overrides()


def test_step_of_one_weight_of_a_paged_optimizer(monkeypatch):
    """As `step` does: the states are fetched before the update, and waited for behind it."""
    weight, calls = torch.nn.Parameter(torch.ones(64, 128)), []
    weight.grad = torch.ones_like(weight)
    optimizer = AdamW8bit([weight], is_paged=True)
    monkeypatch.setattr(optimizer, "prefetch_state", lambda one: calls.append("prefetch"))
    monkeypatch.setattr(optimizer, "update_step", lambda *_: calls.append("update"))
    monkeypatch.setattr(bitsandbytes_private, "sync_gpu", lambda one: calls.append("wait"))
    bitsandbytes_private.step_of_one_weight(optimizer)(weight)
    assert calls == ["prefetch", "update", "wait"]
