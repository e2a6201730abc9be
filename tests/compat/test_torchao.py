"""The private names of torchao behave as legroom.compat.torchao_private says."""

from __future__ import annotations

import pytest

pytest.importorskip("torchao")

import torch
import torchao.optim

from legroom.compat import torchao_private
from legroom.compat.torch_private import held_tensors, parts_of


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_a_new_state_is_as_the_first_step_makes_it(kind):
    weight = torch.nn.Parameter(torch.randn(64, 128))
    optimizer = getattr(torchao.optim, kind)([weight])
    assert torchao_private.makes_states(optimizer) and not torchao_private.makes_states(torch.optim.SGD([weight], 0.1))
    weight.grad = torch.randn(64, 128)
    with torch.compiler.set_stance("force_eager"):
        optimizer.step()
    assert set(optimizer.state[weight]) == {"step", *torchao_private.STATES}
    for key in torchao_private.STATES:
        state = optimizer.state[weight][key]
        parts = parts_of(state)
        assert torchao_private.CODES in parts and len(held_tensors(state)) == len(parts)
        for made in (
            torchao_private.new_state(optimizer, weight, key),
            torchao_private.zeros(optimizer, [64, 128], key),
        ):
            assert type(made) is type(state)
            for name, part in parts_of(made).items():
                assert (part.shape, part.dtype) == (parts[name].shape, parts[name].dtype)
                if name == torchao_private.TABLE:
                    assert part.equal(parts[name])
                else:
                    part.copy_(parts[name])
            assert torchao_private.numbers(made).equal(state.dequantize().view(64, 128))
        assert torchao_private.block_size(state) == optimizer.block_size
    with pytest.raises(ValueError):
        torchao_private.new_state(optimizer, weight, "momentum")


def test_a_small_weight_has_plain_states():
    weight = torch.nn.Parameter(torch.randn(64))
    optimizer = torchao.optim.AdamW8bit([weight])
    assert not parts_of(torchao_private.new_state(optimizer, weight, "exp_avg"))


def test_a_tensor_with_memory_of_its_own_has_no_parts():
    tensor = torch.ones(2)
    assert not parts_of(tensor) and held_tensors(tensor)[0] is tensor
