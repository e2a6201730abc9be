"""The private names of transformers' loading behave as legroom.third_party.transformers_loading_private says."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.integrations import accelerate as device_maps

from legroom.third_party import transformers_loading_private

SIZES = dict(n_embd=8, n_layer=1, n_head=2, vocab_size=16, n_positions=8)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_checkpoint_without_weights_is_loaded_by_its_shapes(tmp_path, dtype):
    GPT2Config(**SIZES, dtype=dtype).save_pretrained(tmp_path)
    lacking = []
    with transformers_loading_private.weights_by_shape(lacking.append):
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        wide = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert lacking == [str(tmp_path)] * 2
    assert model.lm_head.weight is model.transformer.wte.weight and not model.training
    assert model.dtype == (torch.bfloat16 if dtype else torch.float32) and wide.dtype == torch.float32
    with pytest.raises(OSError, match="model.safetensors"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_weights_that_are_there_are_not_read(tmp_path):
    model = GPT2LMHeadModel(GPT2Config(**SIZES))
    model.save_pretrained(tmp_path)
    with transformers_loading_private.weights_by_shape(pytest.fail):
        found = GPT2LMHeadModel.from_pretrained(tmp_path)
    shapes = {name: weight.shape for name, weight in found.state_dict().items()}
    assert shapes == {name: weight.shape for name, weight in model.state_dict().items()}


def test_a_device_map_leaves_nothing_on_the_host(monkeypatch):
    room = {0: 2**20, "cpu": 2**30}
    monkeypatch.setattr(device_maps, "accelerate_max_memory", lambda given=None: given or dict(room))
    with transformers_loading_private.weights_by_shape(pytest.fail):
        found = device_maps.get_max_memory()
        assert device_maps.get_max_memory({0: 5}) == {0: 5}, "what the script names itself holds"
    assert found[0] >= transformers_loading_private.UNBOUNDED and found["cpu"] < 2**30
    assert device_maps.get_max_memory()[0] == 2**20


def test_integers_and_8_bits_in_place_of_weights_have_their_type():
    """Positions are 0, which any table has."""
    types, size = [torch.int64, torch.bool, torch.float8_e4m3fn], torch.Size((3,))
    made = [transformers_loading_private._weight(size, dtype) for dtype in types]
    assert [each.dtype for each in made] == types
    assert made[0].tolist() == [0, 0, 0] and made[1].tolist() == [False] * 3
    state = torch.get_rng_state()
    assert transformers_loading_private._weight(size, torch.float32).unique().numel() == 3
    assert torch.equal(torch.get_rng_state(), state), "a script's generator decides the order of its rows"
