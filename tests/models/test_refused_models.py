"""Models that cannot be trained or opened are refused in words; what is small or quantised is what it stands for."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import transformers
from conftest import compose
from made_up_records import job

from legroom.data.byte_tokenizer import byte_tokenizer
from legroom.errors import Refusal
from legroom.models import architectures, behaviour, head, pretrained, quantized, trained
from legroom.models import shrunk as shrunk_module
from legroom.models.shrunk import shrunk
from legroom.records import record_file
from legroom.records.saved_model import ADAPTER_FILE

BERT = transformers.BertConfig(
    vocab_size=264, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
)


# --- what is known before a model is built ---------------------------------------------------------


def test_models_that_need_more_than_text_are_refused():
    with pytest.raises(Refusal, match=r"^model=gpt2_tiny needs images beside its text \(git\)"):
        architectures.check(compose("model=gpt2_tiny").cfg, transformers.GitConfig(), "language_modelling")


@pytest.mark.parametrize("forwards,backwards", [(["no", "yes"], None), (None, ["no", "yes"])])
def test_a_head_has_the_names_of_the_list_that_has_names(forwards, backwards):
    """Older tools wrote one of the two lists alone."""
    unnamed = ["LABEL_0", "LABEL_1"]
    config = transformers.BertConfig()
    config.label2id = {name: index for index, name in enumerate(forwards or unnamed)}
    config.id2label = dict(enumerate(backwards or unnamed))
    assert head.labels(config, "classification") == {"no": 0, "yes": 1}


def test_a_model_whose_small_copy_is_still_large_is_not_asked(monkeypatch):
    monkeypatch.setattr(behaviour, "MOST_PARAMETERS", 1000)
    found = behaviour.of(transformers.BloomConfig(n_layer=5), "language_modelling")
    assert found.unknown == "it would not be tiny"


def test_one_layer_of_each_kind_is_kept():
    own = {"0": {"intermediate_size": 4096}, "1": {"intermediate_size": 4096}, "3": {"intermediate_size": 8192}}
    found = shrunk({"num_hidden_layers": 4, "per_layer_config": own})
    assert found["num_hidden_layers"] == 3, "those with 4096, without any, and with 8192"
    assert sorted(found["per_layer_config"]) == [0, 2]
    sizes = {found["per_layer_config"][place]["intermediate_size"] for place in (0, 2)}
    assert sizes == {shrunk_module.lowered("intermediate_size", 8192, shrunk_module.SIZES)}


# --- weights ---------------------------------------------------------------------------------------


def test_out_of_memory_is_no_fault_of_the_weights():
    def load(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError):
        pretrained.call(load, "a/b")
    with pytest.raises(torch.OutOfMemoryError), pretrained.building(BERT, "a/b"):
        load()


def test_a_head_without_architectures_is_not_replaced(tmp_path):
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(BERT).save_pretrained(tmp_path)
    kind = transformers.AutoModelForSequenceClassification
    with pytest.raises(Refusal, match=r'Enter "architectures": \["BertForSequenceClassification"\] and the true id2la'):
        pretrained.load_weights(kind, str(tmp_path), BERT, True, print)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("kind", ["TokenClassification", "MultipleChoice"])
def test_a_head_of_another_task_is_left_out(tmp_path, kind, classes):
    """Its weights have the names of a classifier's, and with the same number of classes their shapes."""
    torch.manual_seed(0)
    saved = getattr(transformers, f"BertFor{kind}")(
        transformers.BertConfig(**{**BERT.to_dict(), "num_labels": classes})
    )
    saved.classifier.bias.data += 1
    saved.save_pretrained(tmp_path)
    config = pretrained.configuration(str(tmp_path))
    config.num_labels = 2
    settings = (transformers.AutoModelForSequenceClassification, str(tmp_path), config, True, print)
    model = pretrained.load_weights(*settings)
    assert model.classifier.weight.shape == (2, 32) and not model.classifier.bias.any(), "initialised at random"
    assert 0.01 < model.classifier.weight.std() < 0.03 and model.classifier.weight.isfinite().all()
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, saved.bert.embeddings.word_embeddings.weight)
    if kind == "MultipleChoice":
        assert torch.equal(model.bert.pooler.dense.weight, saved.bert.pooler.dense.weight), "of no task"
    saved.bert.embeddings.LayerNorm.weight.data[0] = torch.nan
    saved.save_pretrained(tmp_path)
    with pytest.raises(Refusal, match="no numbers"):
        pretrained.load_weights(*settings)


def test_the_head_of_its_own_task_stays(tmp_path):
    saved = transformers.BertForSequenceClassification(BERT)
    saved.save_pretrained(tmp_path)
    config, kind = pretrained.configuration(str(tmp_path)), transformers.AutoModelForSequenceClassification
    model = pretrained.load_weights(kind, str(tmp_path), config, not head.is_there(config), print)
    assert torch.equal(model.classifier.weight, saved.classifier.weight)


def test_a_model_without_linear_layers_is_not_quantised():
    """Without its head a model has no prefix by which its layers are told from the head's."""
    assert len(quantized.names(transformers.BertForMaskedLM(BERT))) == 6
    with pytest.raises(Refusal, match="BertModel has no linear layers that can be quantised"):
        quantized.names(transformers.BertModel(BERT))


# --- opened again ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings,said",
    [
        ({"task_type": "SEQ_2_SEQ_LM", "base_model_name_or_path": "a/b"}, "for SEQ_2_SEQ_LM, no language"),
        ({"task_type": "CAUSAL_LM", "base_model_name_or_path": None}, "random weights, which were not saved"),
    ],
)
def test_an_adapter_that_cannot_be_opened_is_refused(tmp_path, settings, said):
    pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    (tmp_path / ADAPTER_FILE).write_text(json.dumps(settings))
    with pytest.raises(Refusal, match=f"^{tmp_path} holds an adapter.*{said}"):
        trained.open_adapter(tmp_path, None, "cpu")


def test_an_adapter_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(Refusal, match="needs the package peft: pip install peft"):
        trained.open_adapter(tmp_path, None, "cpu")


def test_a_model_is_compared_with_its_first_weights(tmp_path):
    config = transformers.GPT2Config(vocab_size=264, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    models = {name: transformers.GPT2LMHeadModel(config) for name in ("base", "run/model")}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    found = job()
    found.config["model"]["pretrained"] = str(tmp_path / "base")
    record_file.write(found, tmp_path / "run")
    opened = trained.open_trained(tmp_path / "run", "cpu", compare=True)
    with opened.base() as base:
        for one, name in ((base, "base"), (opened.model, "run/model")):
            assert torch.equal(one.transformer.wpe.weight, models[name].transformer.wpe.weight)
    assert opened.base_name == str(tmp_path / "base") and trained.open_trained(tmp_path / "run", "cpu").base is None
