"""Tiny models of any architecture: a layer of each kind is kept."""

from __future__ import annotations

import pytest
import tiny
from transformers import CONFIG_MAPPING, GPT2Config, GPT2LMHeadModel

from legroom.models import shrunk


@pytest.mark.parametrize(
    "kinds,kept",
    [
        (["full", "sliding", "full", "linear"], [0, 1, 3]),
        (["full", "full", "full"], [0, 1]),  # two layers at least
        (["full"], [0]),
        (["full", "full"], [0, 1]),
        (["full", "full", "sliding"], [0, 2]),
    ],
)
def test_the_first_layer_of_each_kind_is_kept(kinds, kept):
    assert shrunk.distinct_layers([kinds, [None] * len(kinds)], len(kinds)) == kept


def test_a_layer_differs_by_any_of_its_lists():
    assert shrunk.distinct_layers([["a", "a", "a"], [1, 1, 2]], 3) == [0, 2]


def kinds_of_layers(config) -> dict[str, set[str]]:
    """Lists of the configuration that say of each layer what it is -> what they say."""
    text = config.get_text_config()
    lists = {name: getattr(text, name, None) for name in ("layer_types", "layers_block_type", "mlp_layer_types")}
    return {name: set(kinds) for name, kinds in lists.items() if kinds is not None}


@pytest.mark.parametrize("kind", ["zamba2", "zamba", "jamba", "recurrent_gemma", "gemma3_text", "mamba2", "dots1"])
def test_a_tiny_model_has_every_kind_of_layer(kind):
    whole, small = CONFIG_MAPPING[kind](), tiny.tiny_configuration(kind, "language_modelling")
    assert kinds_of_layers(whole) and kinds_of_layers(small) == kinds_of_layers(whole)


def test_a_step_of_a_small_vocabulary_has_ids_of_it():
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    tiny.plain_step(model, "language_modelling")
    assert model.transformer.wte.weight.grad.abs().sum() > 0
