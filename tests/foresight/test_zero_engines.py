"""The engines that stand for DeepSpeed's: with real numbers they train as one process does, and what each operation of
a small step is, in its order, is kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from legroom.foresight.zero import shards as zero_shards

VIEWS = {"t", "view", "detach", "slice", "split", "split_with_sizes", "expand", "as_strided", "transpose", "alias"}
VIEWS |= {"_unsafe_view", "unsqueeze", "select", "_reshape_alias", "is_pinned", "_local_scalar_dense"}
VIEWS |= {"empty", "_record_function_enter_new", "_record_function_exit"}  # the batch, and what a profiler sees


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trained", [(True, True), (False, True), (True, False)])
def test_deepspeeds_linear_layer_computes_the_same(shape, bias, trained):
    torch.manual_seed(0)
    given = [torch.randn(shape), torch.randn(5, 4), *([torch.randn(5)] if bias else [])]
    found, saved = [], []
    for run in (nn.functional.linear, zero_shards.linear):
        tensors = [each.clone().requires_grad_(needs) for each, needs in zip(given, (*trained, True))]
        with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one.shape) or one, lambda one: one):
            saved.clear()
            result = run(*tensors)
            assert run is nn.functional.linear or saved == [shape, (5, 4)]
            result.sin().sum().backward()
        found.append([result, *(each.grad for each in tensors if each.requires_grad)])
    torch.testing.assert_close(found[0], found[1])


def test_in_autocast_its_gradients_are_computed_in_16_bits():
    rows, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    for cast in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            result = zero_shards.linear(rows, weight)
        assert result.dtype == (torch.bfloat16 if cast else torch.float32)
        gradients = torch.autograd.grad(result.float().square().sum(), (rows, weight))
        exact = [(result.float() * 2) @ weight, (result.float() * 2).t() @ rows]
        assert all((found - one).abs().max() > 0 for found, one in zip(gradients, exact)) is cast


def test_tensors_are_followed_wherever_they_stand():
    def doubled(tensor):
        return tensor * 2

    one = torch.ones(1)
    found = zero_shards.on_tensors({"a": one, "b": [one, (one, "text")], "c": None}, doubled)
    assert found == {"a": 2, "b": [2, (2, "text")], "c": None} and zero_shards.on_tensors(one, doubled) == 2
    called = []
    frozen = zero_shards.marked(one, lambda: called.append("after"), lambda: called.append("counted"))
    assert frozen is one and not called
    trained = torch.ones(1, requires_grad=True)
    made = zero_shards.marked(trained, lambda: called.append("after"), lambda: called.append("counted"))
    assert called == ["counted"]
    (made * 3).backward()
    assert called == ["counted", "after"] and trained.grad == 3
