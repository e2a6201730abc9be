"""The private names of libraries behave as tests/tools/library_patches.py says."""

from __future__ import annotations

import library_patches
import pytest
import torch
from torch.optim import adam
from transformers.cache_utils import DynamicCache


def test_softmax_is_replaced_and_restored():
    original = torch.nn.functional.softmax
    with library_patches.softmax_replaced(lambda *_, **__: "another"):
        assert torch.nn.functional.softmax(torch.ones(1), dim=-1) == "another"
    assert torch.nn.functional.softmax is original


def test_gradients_are_kept_as_zeros():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.ones(2)
    with library_patches.gradients_kept_as_zeros():
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
    with library_patches.adam_without_foreach():
        optimizer.step()
    assert called == ["loop"]
    optimizer.step()
    assert "asked" in called[1:]


def test_allocator_history_calls(monkeypatch):
    """What reaches torch's C++ functions, which a build without CUDA lacks."""
    called = []

    def record(enabled, context, stacks, max_entries, *others):
        called.append((enabled, context, stacks, max_entries))

    monkeypatch.setattr(torch._C, "_cuda_record_memory_history", record, raising=False)
    traces = {"device_traces": [["zero"], ["one"]]}
    monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", lambda *_: traces, raising=False)
    library_patches.start_allocator_history(5)
    assert library_patches.allocator_history(1) == ["one"]
    library_patches.stop_allocator_history()
    assert called[0] == ("all", None, "python", 5) and called[1][0] is None


@pytest.mark.gpu
def test_allocator_history_has_each_request():
    library_patches.start_allocator_history(100)
    tensor = torch.empty(2**20, dtype=torch.uint8, device="cuda")
    entries = library_patches.allocator_history(torch.cuda.current_device())
    library_patches.stop_allocator_history()
    (entry,) = [entry for entry in entries if entry["action"] == "alloc"]
    assert (entry["addr"], entry["size"]) == (tensor.data_ptr(), 2**20)


def test_the_cache_keeps_keys_and_values_as_they_come():
    keys, values = torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)
    with library_patches.cache_without_first_copy():
        kept = DynamicCache().update(keys, values, 0)
    assert kept[0] is keys and kept[1] is values
    copied = DynamicCache().update(keys, values, 0)
    assert torch.equal(copied[0], keys) and copied[0] is not keys
