"""What is refused of a configuration before a model exists, and how a model is described: made-up ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers

from legroom.errors import Refusal
from legroom.models import architectures, trained
from legroom.models.architectures import OF_ROWS

LM, CLASSES = "language_modelling", "classification"


def config(kind: str, **values):
    return transformers.AutoConfig.for_model(kind, **values)


def cfg(pretrained=None, predicts=False, seq_len=8, **data):
    model = SimpleNamespace(pretrained=pretrained, name="made", attention="auto")
    return SimpleNamespace(model=model, predicts=predicts, data=SimpleNamespace(seq_len=seq_len, **data))


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


@pytest.mark.parametrize("length,refused", [(40, False), (41, True)])
def test_rows_longer_than_the_positions_are_refused(monkeypatch, length, refused):
    monkeypatch.setattr(architectures.model_options, "lengths", lambda _: {"data.seq_len": length, "eval.window": 1})
    monkeypatch.setattr(architectures.hooks, "behaviours", lambda _: [])
    made = config("llama", max_position_embeddings=40)
    if refused:
        with pytest.raises(
            Refusal, match="data.seq_len=41 is longer than the 40 positions of model=made. Type data.seq_len=40"
        ):
            architectures.check(cfg(), made, LM)
    else:
        assert architectures.check(cfg(), made, LM) == ("model=made", None, [])
    assert architectures.check(cfg(), config("bloom"), LM) == ("model=made", None, [])


def test_levers_see_a_model_and_its_own_code_is_told(monkeypatch):
    seen = []
    monkeypatch.setattr(architectures.model_options, "lengths", lambda _: {})
    lever = SimpleNamespace(check_model=lambda *given: seen.append(given))
    monkeypatch.setattr(architectures.hooks, "behaviours", lambda _: [lever])
    made = config("llama", auto_map={"AutoConfig": "x.Y", "AutoModelForCausalLM": "modeling.Own"})
    _, _, (line,) = architectures.check(cfg("a/b"), made, LM)
    assert "(auto_map: modeling.Own), which is not run: LlamaForCausalLM of transformers" in line
    assert seen == [("model.pretrained=a/b", made, LM)]
    made = config("llama", auto_map={"AutoConfig": "x.Y"})
    assert architectures.check(cfg("a/b"), made, LM)[2] == []


@pytest.mark.parametrize("kind,values,task,refused", [
    ("t5", {"eos_token_id": 1, "decoder_start_token_id": 0}, CLASSES, None),
    ("t5", {"eos_token_id": None, "decoder_start_token_id": 0}, CLASSES, "eos_token_id"),
    ("t5", {"eos_token_id": 1, "decoder_start_token_id": None}, CLASSES, "decoder_start_token_id"),
    ("mbart", {"eos_token_id": 1, "decoder_start_token_id": None}, CLASSES, None),
    ("mbart", {"eos_token_id": None}, CLASSES, "eos_token_id"),
    ("bert", {"eos_token_id": None}, CLASSES, None),
])  # fmt: skip
def test_a_classifier_that_lacks_a_token(monkeypatch, kind, values, task, refused):
    monkeypatch.setattr(architectures.model_options, "lengths", lambda _: {})
    monkeypatch.setattr(architectures.hooks, "behaviours", lambda _: [])
    monkeypatch.setattr(architectures, "positions", lambda _: None)
    made = config(kind)
    for key, value in values.items():
        setattr(made, key, value)
    if refused:
        with pytest.raises(Refusal, match=f"config.json has no {refused}, the id of the token"):
            architectures.check(cfg(), made, task)
    else:
        architectures.check(cfg(), made, task)


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


# --- models that were trained --------------------------------------------------------------------


@pytest.mark.parametrize("generates", [True, False])
def test_a_trained_model_ends_where_it_did_and_has_no_other_settings(generates):
    own = transformers.GenerationConfig(eos_token_id=[3, 4], num_beams=4, temperature=0.5)
    model = SimpleNamespace(can_generate=lambda: generates, generation_config=own)
    found = trained._ends_alone(model).generation_config
    assert (found.eos_token_id, found.num_beams == 4) == ([3, 4], not generates)


@pytest.mark.parametrize("bits,dtype", [(None, None), (4, None), (4, torch.float16), (8, torch.float32)])
def test_how_a_trained_model_is_loaded(monkeypatch, bits, dtype):
    seen = {}

    def load(name, **settings):
        seen.update(settings, name=name)
        return torch.nn.Linear(1, 1), {"missing_keys": {"b", "a"}}

    def arguments(shape, bits, dtype, device):
        seen["quantised"] = [shape, bits, dtype, device]
        return {"quantization_config": bits}

    shape_of = SimpleNamespace(from_pretrained=load, from_config=lambda config: torch.get_default_device().type)
    monkeypatch.setattr(trained.quantized, "loading_arguments", arguments)
    types = {} if dtype is None else {"dtype": dtype}
    model, missing = trained._loaded("a/b", "config", "cpu", bits, shape_of, **types)
    assert missing == ["a", "b"] and not model.training and seen["use_safetensors"] is True
    assert seen["output_loading_info"] is True and seen["dtype"] == (dtype or "auto") and seen["config"] == "config"
    assert seen.get("quantised") == (
        [shape_of.from_config(0) and "meta", bits, dtype or torch.bfloat16, "cpu"] if bits else None
    )
