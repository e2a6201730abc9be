"""What is refused of a configuration before a model exists, and how a model is described: made-up ones."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
import transformers
from known_values import known

from legroom.errors import Refusal
from legroom.models import architectures, trained
from legroom.models.architectures import OF_ROWS

LM, CLASSES = "language_modelling", "classification"


def config(kind: str, **values):
    return transformers.AutoConfig.for_model(kind, **values)


def cfg(pretrained=None, predicts=False, seq_len=8, **data):
    model = SimpleNamespace(pretrained=pretrained, name="made", attention="auto")
    return SimpleNamespace(model=model, predicts=predicts, data=SimpleNamespace(seq_len=seq_len, **data))


KINDS = [
    ("llama", LM, {}), ("llama", CLASSES, {}), ("llama", "masked_lm", {}), ("llama", "question_answering", {}),
    ("bert", LM, {}), ("bert", CLASSES, {}), ("bert", "masked_lm", {}),
    ("t5", LM, {}), ("t5", "masked_lm", {}), ("t5", CLASSES, {}), ("marian", CLASSES, {}),
    ("vit", CLASSES, {}), ("wav2vec2", CLASSES, {}), ("git", LM, {}), ("layoutlmv2", CLASSES, {}),
    ("albert", LM, {}), ("llama", LM, {"quantization_config": {"quant_method": "gptq"}}),
    ("llama", LM, {"architectures": ["MyOwn", "Another"]}), ("vit", CLASSES, {"architectures": ["MyOwn", "Another"]}),
]  # fmt: skip


def test_kinds_of_models_that_are_trained_and_those_that_are_not(data_regression):
    found = {}
    for (kind, task, values), predicts in itertools.product(KINDS, (False, True)):
        try:
            said = architectures.check_kind(cfg(predicts=predicts), config(kind, **values), task)
        except Refusal as refused:
            said = str(refused)
        if not predicts or not said.startswith("model=made "):
            found[f"{kind} {task} {values} {'estimated' if predicts else ''}"] = said
    found["pretrained"] = architectures.check_kind(cfg("a/b"), config("llama"), LM)
    data_regression.check(found)


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


def test_the_ids_of_padding_and_of_the_end(data_regression):
    found = {}
    for kind, task, own, pad, eos in itertools.product(
        ("llama", "bart"), (LM, CLASSES), (None, -1, 0, 1, 9, 10), (1, 3), (1, 2)
    ):
        made = config(kind, vocab_size=10, pad_token_id=own, eos_token_id=eos, bos_token_id=0)
        architectures.set_special_ids(made, pad, task)
        last = architectures.last_id(made, task)
        found[f"{kind} {task}, own {own}, given {pad}, end {eos}"] = [made.pad_token_id, last]
    made = SimpleNamespace(model_type="x", pad_token_id=None)
    made.get_text_config = lambda: made
    architectures.set_special_ids(made, 4, LM)
    assert (made.pad_token_id, made.bos_token_id, made.eos_token_id) == (4, None, None)
    data_regression.check(known(found))


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


@pytest.mark.parametrize("asked,said", [("auto", "sdpa"), ("eager", "eager")])
def test_a_model_as_its_record_describes_it(asked, said, data_regression):
    made = cfg()
    made.model.attention = asked
    sizes = dict(vocab_size=16, n_embd=8, n_layer=3, n_head=2, n_positions=12)
    model = transformers.GPT2LMHeadModel(config("gpt2", **sizes))
    model.transformer.wte.weight.requires_grad_(False)
    found = architectures.describe(made, model)
    assert found.attention == said and found.trained_parameters == sum(
        weight.numel() for weight in model.parameters() if weight.requires_grad
    )
    data_regression.check(known(found))


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
