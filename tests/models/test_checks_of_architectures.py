"""What is refused of a configuration before a model exists, and how a model is described: made-up ones."""

from __future__ import annotations

import pytest
import transformers

from legroom.models import architectures
from legroom.models.architectures import OF_ROWS

LM, CLASSES = "language_modelling", "classification"


def config(kind: str, **values):
    return transformers.AutoConfig.for_model(kind, **values)


@pytest.mark.parametrize(
    "kind,values,most",
    [
        ("llama", {"max_position_embeddings": 40}, 40),
        ("gpt2", {"n_positions": 40}, 40),
        ("xlnet", {}, None),
        ("bloom", {}, None),
        ("bert", {"max_position_embeddings": 40, "hidden_size": 4, "num_attention_heads": 2}, 40),
        ("roberta", {"max_position_embeddings": 40, "pad_token_id": 1, "hidden_size": 4, "num_attention_heads": 2}, 38),
        ("roberta", {"max_position_embeddings": 40, "pad_token_id": 3, "hidden_size": 4, "num_attention_heads": 2}, 36),
        ("llama", {"max_position_embeddings": 0}, None),
        ("llama", {"max_position_embeddings": 1}, 1),
    ],
)
def test_the_positions_of_a_model(kind, values, most):
    assert architectures.positions(config(kind, num_hidden_layers=1, vocab_size=16, **values)) == most


def test_classes_of_tasks():
    llama = config("llama")
    assert architectures.model_class(llama, LM) is transformers.LlamaForCausalLM
    assert all(
        architectures.model_class(llama, task) is transformers.LlamaForSequenceClassification for task in OF_ROWS
    )
    assert architectures.model_class(llama, "masked_lm") is None
    assert architectures.headless_class(llama) is transformers.LlamaModel
    assert architectures.headless_class(config("funnel")) is transformers.FunnelModel, "the first of two"
    assert architectures.vocabulary(llama) == 32000 and architectures.vocabulary(config("canine")) is None
    model = architectures.without_memory(transformers.LlamaForCausalLM, config("llama", num_hidden_layers=1))
    assert all(weight.is_meta for weight in model.parameters())
