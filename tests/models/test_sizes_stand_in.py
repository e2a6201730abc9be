"""An estimate of a known model needs no file of it: its published sizes stand in for a config.json that is not here."""

from __future__ import annotations

import pytest
from conftest import compose
from transformers import PretrainedConfig

from legroom.errors import NotHere
from legroom.models import builder, pretrained

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture(autouse=True)
def nothing_is_here(monkeypatch):
    """As without a network and with an empty cache."""

    def fails(*_, **__):
        raise OSError("We couldn't connect to the hub.")

    monkeypatch.setattr(PretrainedConfig, "get_config_dict", fails)
    pretrained.stand_in.cache_clear()
    yield
    pretrained.stand_in.cache_clear()


def configuration(*overrides):
    return builder.configuration(compose("gpu=l4_24gb", *overrides).cfg)


def test_a_known_id_has_the_configuration_of_its_option():
    by_id = configuration("recipe=estimate", f"model.pretrained={LLAMA}")
    by_option = configuration("recipe=estimate", "model=llama_8b")
    assert by_id.to_dict() == by_option.to_dict() | {"id2label": by_id.id2label, "label2id": by_id.label2id}


def test_a_training_needs_the_files():
    with pytest.raises(NotHere, match="An estimate needs no weights: model=llama_8b has the sizes of meta-llama/Llama"):
        configuration(f"model.pretrained={LLAMA}", "device=cpu")


def test_an_unknown_id_is_refused_with_what_is_near():
    with pytest.raises(NotHere, match="Did you mean model=llama_8b"):
        configuration("recipe=estimate", "model.pretrained=nobody/Own-Llama-3.1-8B")


def test_the_estimate_says_which_sizes_and_rows_it_took(predicted):
    outcome = predicted(
        "gpu=l4_24gb", "model.pretrained=HuggingFaceTB/SmolLM2-135M-Instruct", "data=chat", "data.seq_len=64"
    )
    assert outcome.estimate.fits and outcome.memory.parameter_count == 134_515_008
    said = " ".join(outcome.warnings)
    assert "published sizes of HuggingFaceTB/SmolLM2-135M" in said and "model=smollm2_135m" in said
    assert "data=chat has no data.path= yet" in said and "512 of data.seq_len=64 tokens" in said
