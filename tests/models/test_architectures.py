"""What is known of a model before it is built: its attention, its positions, and why it cannot be trained."""

from __future__ import annotations

import copy
import json

import pytest
import tiny
import tokenizers
import torch
import transformers
from conftest import compose, small
from made_up_records import job

from legroom.cli import brief
from legroom.errors import Refusal
from legroom.models import architectures
from legroom.options import resume
from legroom.records.record import Model
from legroom.report import rows

SIZES = dict(vocab_size=512, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(class, configuration) -> the folder of a saved model with random weights."""

    def save(kind, config):
        path = tmp_path_factory.mktemp("saved")
        kind(config).save_pretrained(path)
        return path

    return save


@pytest.fixture(scope="module")
def bloom(folder):
    """A decoder without sdpa."""
    config = transformers.BloomConfig(vocab_size=512, hidden_size=32, n_layer=3, n_head=4)
    return folder(transformers.BloomForCausalLM, config)


# --- attention -------------------------------------------------------------------------------------


def test_auto_is_sdpa_where_the_model_has_it(train):
    run = train()
    assert run.record.config["model"]["attention"] == "auto", "what was asked"
    assert run.record.model.attention == "sdpa", "what was chosen"
    assert "attention sdpa (auto)" in " ".join(brief.answer(run.record).split())
    typed = train("model.attention=sdpa")
    assert typed.record.training.losses == run.record.training.losses
    assert brief.answer(typed.record).split()[-2:] == ["attention", "sdpa"]


@pytest.mark.parametrize("recipe", ["accelerate", "trainer", "estimate"])
def test_auto_is_eager_where_the_model_has_nothing_else(train, bloom, recipe):
    record = train(f"model.pretrained={bloom}", f"recipe={recipe}").record
    assert record.model.attention == "eager" and record.config["model"]["attention"] == "auto"


@pytest.mark.parametrize("recipe", ["accelerate", "estimate"])
def test_attention_that_was_typed_is_kept_or_refused(train, bloom, recipe):
    refused = train(f"model.pretrained={bloom}", "model.attention=sdpa", f"recipe={recipe}", status="refused").record
    assert all(each in refused.error.message for each in ("sdpa", "BloomForCausalLM", "model.attention=auto"))
    assert train("model.attention=eager", f"recipe={recipe}").record.model.attention == "eager"


def test_records_of_sdpa_and_auto_are_compared():
    before, now = job("model.attention=sdpa", "precision=bf16"), job("precision=fp32")
    now.model = Model("bert_tiny", "BertForSequenceClassification", "sdpa")
    assert rows.make_table([before, now]).keys == ["precision"]
    eager = job("model.attention=eager")
    assert rows.make_table([now, eager]).keys == ["model.attention"]


def test_a_checkpoint_of_the_former_default_is_continued():
    auto, sdpa, eager = (compose(*small(f"model.attention={name}")).record.config for name in ("auto", "sdpa", "eager"))
    assert resume.same(auto, sdpa) and not resume.same(auto, eager)


# --- names and sizes of pretrained models ----------------------------------------------------------


def test_a_pretrained_model_has_its_own_name_and_sizes(train, bloom):
    """They stand in the record, and nothing of the menu's option does."""
    run = train(f"model.pretrained={bloom}")
    model, asked = run.record.model, run.record.config["model"]
    assert (model.name, model.architecture) == (str(bloom), "BloomForCausalLM")
    assert (model.layers, model.width, model.heads, model.vocab, model.positions) == (3, 32, 4, 512, None)
    assert asked["name"] == str(bloom) and asked["layers"] is None and asked["width"] is None
    assert "bert_tiny" not in json.dumps(asked)


def test_a_menus_model_is_described_too(train):
    model = train("model=gpt2_tiny").record.model
    assert (model.name, model.architecture, model.layers, model.positions) == ("gpt2_tiny", "GPT2LMHeadModel", 1, 64)


def test_the_label_of_a_pretrained_model_is_its_name():
    """Also in records that were written with the menu's name and sizes beside it."""
    pretrained, older, small_model = job("model.pretrained=org/some"), job("model.pretrained=org/some"), job()
    older.config["model"] |= {"name": "bert_tiny", "layers": 2, "width": 128}
    made = rows.make_table([pretrained, older, small_model])
    assert [row.name for row in made.rows] == ["model=bert_tiny", "model=org/some"]
    assert [len(row.runs) for row in made.rows] == [1, 2]


# --- positions -------------------------------------------------------------------------------------


def test_roberta_keeps_two_positions_for_itself(train, folder):
    config = transformers.RobertaConfig(**SIZES, max_position_embeddings=34, pad_token_id=1)
    path = folder(transformers.RobertaForSequenceClassification, config)
    assert train(f"model.pretrained={path}", "data.seq_len=32").record.model.positions == 32
    record = train(f"model.pretrained={path}", "data.seq_len=33", status="refused").record
    assert "data.seq_len=33" in record.error.message and "data.seq_len=32" in record.error.message


def test_xlnet_has_no_limit(train, folder):
    config = transformers.XLNetConfig(vocab_size=512, d_model=32, n_layer=1, n_head=2, d_inner=64)
    path = folder(transformers.XLNetForSequenceClassification, config)
    assert train(f"model.pretrained={path}").record.model.positions is None


# --- refused before anything is loaded -------------------------------------------------------------


def test_albert_cannot_checkpoint(train, folder):
    config = transformers.AlbertConfig(**SIZES, embedding_size=16, max_position_embeddings=64)
    path = folder(transformers.AlbertForSequenceClassification, config)
    train(f"model.pretrained={path}")
    (path / "model.safetensors").write_bytes(b"never read")
    record = train(f"model.pretrained={path}", "checkpointing=full", status="refused").record
    assert (
        all(each in record.error.message for each in ("AlbertFor", "checkpointing=none"))
        and record.error.phase == "load"
    )


TINY_VIT = transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
TINY_T5 = transformers.T5Config(vocab_size=512, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2)
TINY_BART = transformers.BartConfig(
    vocab_size=512, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
)  # fmt: skip


@pytest.mark.parametrize(
    "config,architecture,said",
    [
        (TINY_T5, "T5ForConditionalGeneration", "sequence-to-sequence"),
        (TINY_BART, "BartForConditionalGeneration", "sequence-to-sequence"),
        (TINY_VIT, "ViTForImageClassification", "images"),
        (transformers.Wav2Vec2Config(), "Wav2Vec2ForCTC", "audio"),
        (transformers.WhisperConfig(), "WhisperForConditionalGeneration", "audio"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("recipe", ["accelerate", "estimate"])
def test_models_of_other_data_are_refused_before_loading(train, tmp_path, config, architecture, said, recipe):
    config.architectures = [architecture]
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    record = train(f"model.pretrained={tmp_path}", f"recipe={recipe}", status="refused").record
    assert said in record.error.message and architecture in record.error.message and "\n" not in record.error.message
    assert ("estimate_step (docs/api.md)" in record.error.message) == (recipe == "estimate")


@pytest.mark.parametrize("kind", ["bart", "mbart", "mvp"])
def test_the_labels_of_masked_tokens_are_given_to_no_decoder(kind):
    """Their loss shifts the labels into the decoder's input: the model sees what it is to predict."""
    config = transformers.AutoConfig.for_model(kind)
    with pytest.raises(Refusal, match="sequence-to-sequence model.*Choose an encoder"):
        architectures.check(compose(*small("model=bert_tiny")).cfg, config, "masked_lm")


def test_classifiers_of_sequence_to_sequence_models(train, folder):
    path = folder(transformers.BartForSequenceClassification, TINY_BART)
    trained = train(f"model.pretrained={path}").record
    estimated = train(f"model.pretrained={path}", "recipe=estimate").record
    assert estimated.memory.peak_tensor_bytes == pytest.approx(trained.memory.peak_tensor_bytes, rel=0.02)


def seq2seq(folder, tmp_path, tokenizer, texts=("one", "two"), **values):
    """What trains a classifier of a tiny T5 with such values in its config.json on texts."""
    config = copy.deepcopy(TINY_T5)
    for name, value in ({"decoder_start_token_id": 0} | values).items():
        setattr(config, name, value)
    path = folder(transformers.T5ForSequenceClassification, config)
    tokenizer.save_pretrained(path)
    rows = "".join(json.dumps({"text": text, "label": n % 2}) + "\n" for n, text in enumerate(list(texts) * 8))
    (tmp_path / "t.jsonl").write_text(rows)
    return [f"model.pretrained={path}", "data=text", f"data.path={tmp_path}/t.jsonl", "eval.enabled=false"]


def ending_tokenizer():
    """A tokenizer of words that writes its end token, 1, behind each text."""
    words = {"<pad>": 0, "</s>": 1, "one": 2, "two": 3, "<unk>": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    )


def test_a_classifier_of_t5_is_trained_on_texts(train, folder, tmp_path):
    train(*seq2seq(folder, tmp_path, ending_tokenizer(), ["one", "two one two"]))


@pytest.mark.parametrize("kind", ["config", "tokenizer"])
def test_padding_that_is_the_end_token_is_replaced(train, folder, tmp_path, kind):
    """The head finds the end of a row by its id."""
    words = ["train.learning_rate=0", "eval.enabled=true", "data.eval_fraction=0.5"]
    losses = []
    for same in (False, True):
        tokenizer, values = ending_tokenizer(), {}
        if same and kind == "tokenizer":
            tokenizer.pad_token = "</s>"
        elif same:
            values = {"pad_token_id": 1}
        torch.manual_seed(0)
        run = train(*seq2seq(folder, tmp_path, tokenizer, ["one", "two one two"], **values), *words)
        losses.append(run.record.evaluation.loss)
        assert any("pads with its end token" in line for line in run.record.warnings) == bool(values)
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "values,said",
    [
        ({"decoder_start_token_id": None}, "config.json has no decoder_start_token_id"),
        ({"eos_token_id": None}, "config.json has no eos_token_id"),
        ({"eos_token_id": 7}, "16 of 16 rows have not"),
        ({"texts": ["one", "two </s>"]}, "have 1 to 2 of it"),
    ],
    ids=str,
)
def test_a_t5_classifier_without_its_token_is_refused(train, folder, tmp_path, values, said):
    words = seq2seq(folder, tmp_path, ending_tokenizer(), **values)
    error = train(*words, "data.eval_fraction=0", "data.samples=null", status="refused").record.error
    assert said in error.message and "\n" not in error.message


def test_a_step_that_depends_on_values_is_not_estimated(train, folder):
    """DBRX's experts read from the device which tokens are theirs."""
    config = tiny.tiny_configuration("dbrx", "language_modelling")
    overrides = [f"model.pretrained={folder(transformers.DbrxForCausalLM, config)}", "recipe=estimate"]
    record = train(*overrides, "gpu=rtx4090_24gb", "device=auto", status="refused").record
    assert "cannot follow" in record.error.message and "train.max_steps" in record.error.message
    assert "\n" not in record.error.message


@pytest.mark.parametrize("own, pad, expected", [(5, 0, 5), (1, 0, 0), (1, 1, 0), (None, 3, 3), (9999, 3, 3)])
def test_padding_is_not_the_token_a_classifier_reads(own, pad, expected):
    config = transformers.T5Config(vocab_size=64, eos_token_id=1, pad_token_id=own)
    architectures.set_special_ids(config, pad, "classification")
    assert config.pad_token_id == expected


def test_padding_of_other_models_stays_what_it_is():
    config = transformers.LlamaConfig(vocab_size=64, eos_token_id=1, pad_token_id=1)
    architectures.set_special_ids(config, 0, "classification")
    assert config.pad_token_id == 1
