"""The private names of torchao behave as legroom.compat.torchao_private says."""

from __future__ import annotations

import pytest

pytest.importorskip("torchao")

import torch
import torchao.optim

from legroom.compat import torchao_private
from legroom.compat.torch_private import held_tensors, parts_of


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_a_state_is_put_together_again_from_its_parts(kind):
    weight = torch.nn.Parameter(torch.randn(64, 128))
    optimizer = getattr(torchao.optim, kind)([weight])
    weight.grad = torch.randn(64, 128)
    with torch.compiler.set_stance("force_eager"):
        optimizer.step()
    for key in ("exp_avg", "exp_avg_sq"):
        state = optimizer.state[weight][key]
        parts = parts_of(state)
        assert sum(map(torch.Tensor.numel, parts.values())) > 0 and len(held_tensors(state)) == len(parts)
        again = torchao_private.state_of_parts(optimizer, weight, key, parts)
        assert type(again) is type(state) and again.dequantize().equal(state.dequantize())
        assert parts_of(again)["codes"].data_ptr() != parts["codes"].data_ptr()
        for wrong in (parts | {"scale": parts["scale"][:1]}, parts | {"more": parts["scale"]}):
            with pytest.raises(ValueError):
                torchao_private.state_of_parts(optimizer, weight, key, wrong)


def test_a_tensor_with_memory_of_its_own_has_no_parts():
    tensor = torch.ones(2)
    assert not parts_of(tensor) and held_tensors(tensor)[0] is tensor
