"""Pretrained weights: the ids they were trained on, no weight made up without a word, and a new head that is named."""

from __future__ import annotations

import json

import pytest
import tokenizers
import torch
import transformers
from conftest import compose, small
from safetensors.torch import load_file, save_file

from legroom.data import byte_tokenizer, tokens
from legroom.errors import Refusal
from legroom.models import pretrained

RECIPES = ["trainer", "accelerate"]
SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


def config_of(family: str, **more):
    names = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_inner": 64} if family == "gpt2" else SIZES
    if family == "llama":
        names = names | {"num_key_value_heads": 2}
    return transformers.AutoConfig.for_model(family, vocab_size=264, **names, **more)


def word_tokenizer(count: int = 20):
    """A tokenizer of a few words."""
    words = {"[PAD]": 0, "[UNK]": 1, "[END]": 2} | {f"w{n}": n for n in range(3, count)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", eos_token="[END]"
    )


def saved(path, model, tokenizer=None):
    torch.manual_seed(0)
    path.mkdir(exist_ok=True)
    model.save_pretrained(path)
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def gpt2(tmp_path):
    """gpt2(tokenizer) -> the folder of a small GPT-2."""
    return lambda tokenizer=None, **more: saved(
        tmp_path / "gpt2", transformers.GPT2LMHeadModel(config_of("gpt2", **more)), tokenizer
    )


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("w5 w6 w7\n" * 20)
    return ["data=text", f"data.path={path}", "data.seq_len=8"]


def first_problem(*overrides) -> str:
    return "\n".join(compose(*small(*overrides)).problems)


# --- the tokenizer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_tokenizer_is_the_one_that_the_model_brings(train, gpt2, corpus, recipe):
    folder = gpt2(word_tokenizer())
    run = train(f"recipe={recipe}", f"model.pretrained={folder}", *corpus, "save.final=true")
    assert run.record.config["data"]["tokenizer"] == str(folder)
    assert run.record.training.tokens == 2 * 2 * 8, "4 ids a line; in bytes it would be 9"
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    assert tokenizer("w5 w6")["input_ids"] == [5, 6]


def test_models_of_the_menu_train_on_bytes():
    assert compose("data=wikitext", "model=gpt2_tiny").cfg.data.tokenizer == "bytes"
    assert compose("data=dummy").cfg.data.tokenizer is None


def test_a_folder_without_a_tokenizer_is_refused(gpt2, corpus):
    line = first_problem(f"model.pretrained={gpt2()}", *corpus)
    assert "brings no tokenizer" in line and "data.tokenizer=" in line


@pytest.mark.slow_for("CanineTokenizer")
@pytest.mark.parametrize("kind", [transformers.ByT5Tokenizer, transformers.CanineTokenizer])
def test_a_tokenizer_without_a_file_of_its_vocabulary_is_one(gpt2, corpus, kind):
    folder = gpt2(kind())
    assert "tokenizer" not in first_problem(f"model.pretrained={folder}", *corpus)
    assert type(tokens.Tokens(str(folder)).tokenizer) is kind


def test_a_model_of_images_is_not_asked_for_a_tokenizer(tmp_path):
    """It is refused as a model of images where its class is known."""
    (tmp_path / "config.json").write_text('{"model_type": "vit", "image_size": 224}')
    words = ["data=text", f"data.path={tmp_path}", f"model.pretrained={tmp_path}"]
    assert not any("tokenizer" in line for line in compose(*words, "device=cpu").problems)


def test_a_made_up_tokenizer_is_refused(train, gpt2, corpus):
    """AutoTokenizer gives a GPT-2 without files a vocabulary of one token."""
    folder = gpt2()
    (folder / "vocabulary.md").write_text("not the file that is looked for")
    record = train(f"model.pretrained={folder}", *corpus, status="refused").record
    assert "brings no tokenizer" in record.error.message or "cannot be loaded" in record.error.message
    assert "tokenizer.save_pretrained" in record.error.message and "\n" not in record.error.message


@pytest.mark.parametrize("words", [["data.tokenizer=bytes"], ["data=source", "data.seq_len=8"]])
def test_bytes_for_weights_of_another_tokenizer_are_refused(train, gpt2, corpus, words):
    told = words if "data=source" in words else [*corpus, *words]
    record = train(f"model.pretrained={gpt2(word_tokenizer())}", *told, status="refused").record
    assert "not on bytes" in record.error.message and "20 tokens" in record.error.message


def test_bytes_without_a_tokenizer_want_a_vocabulary_of_bytes(train, gpt2, corpus):
    told = [*corpus, "data.tokenizer=bytes"]
    record = train(f"model.pretrained={gpt2()}", *told).record
    assert any("assumed to have been trained on the ids of data.tokenizer=bytes" in line for line in record.warnings)
    config = config_of("gpt2")
    config.vocab_size = 1000
    folder = saved(gpt2().parent / "large", transformers.GPT2LMHeadModel(config))
    record = train(f"model.pretrained={folder}", *told, status="refused").record
    assert "1,000 tokens" in record.error.message and "data.tokenizer=" in record.error.message


def test_another_tokenizer_than_the_models_is_a_warning(train, gpt2, corpus, tmp_path):
    word_tokenizer(15).save_pretrained(tmp_path / "other")
    told = [f"model.pretrained={gpt2(word_tokenizer())}", *corpus, f"data.tokenizer={tmp_path / 'other'}"]
    assert any("trained on other ids" in line for line in train(*told).record.warnings)


@pytest.mark.slow_for("trainer")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_saved_model_is_gone_on_with_on_the_same_ids(train, corpus, recipe):
    """From the menu, in bytes: the byte tokenizer goes with the model, and the second run finds it."""
    told = [f"recipe={recipe}", *corpus, "train.learning_rate=0", "save.final=true"]
    first = train("model=gpt2_tiny", *told)
    folder = first.folder / "model"
    second = train(f"model.pretrained={folder}", *told)
    assert second.record.training.losses == pytest.approx(first.record.training.losses, rel=1e-6)
    assert second.record.training.tokens == first.record.training.tokens
    for place in (folder, second.folder / "model"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        assert byte_tokenizer.is_byte_tokenizer(tokenizer)


@pytest.mark.parametrize("text", ["naïve\0 <|end|> \r\n x  y", "日本 \u2028 é", " "])
def test_the_byte_tokenizer_gives_bytes_and_takes_them_back(tmp_path, text):
    byte_tokenizer.byte_tokenizer().save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(text)["input_ids"]
    assert ids == [byte + 1 for byte in text.encode()] and tokenizer.decode(ids) == text
    assert tokenizer(text, "x")["input_ids"] == [*ids, 0, ord("x") + 1]


# --- missing weights --------------------------------------------------------------------------------


def change(folder, change_weights):
    """Rewrites the weights of a folder."""
    weights = load_file(folder / "model.safetensors")
    change_weights(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_missing_weights_are_refused_by_name(train, gpt2):
    folder = gpt2()
    change(folder, lambda weights: [weights.pop(name) for name in list(weights) if ".mlp.c_fc." in name])
    message = train(f"model.pretrained={folder}", status="refused").record.error.message
    assert "2 weights of GPT2LMHeadModel are not in the checkpoint" in message
    assert "transformer.h.0.mlp.c_fc.bias, transformer.h.0.mlp.c_fc.weight" in message and "\n" not in message


def test_a_head_that_config_json_promises_is_not_made_up(train, tmp_path):
    folder = saved(tmp_path / "bert", transformers.BertForSequenceClassification(config_of("bert")))
    change(folder, lambda weights: weights.pop("classifier.weight"))
    assert "classifier.weight" in train(f"model.pretrained={folder}", status="refused").record.error.message


def test_weights_of_another_shape_are_refused(train, gpt2):
    folder = gpt2()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_inner": 48}))
    message = train(f"model.pretrained={folder}", status="refused").record.error.message
    assert "transformer.h.0.mlp.c_fc.bias has the shape (64,)" in message and "(48,)" in message
    assert "2 more differ" in message


def test_weights_that_are_not_used_are_named(train, gpt2):
    folder = gpt2()
    change(folder, lambda weights: weights.update({"value_head.weight": torch.ones(2)}))
    assert any("value_head.weight" in line for line in train(f"model.pretrained={folder}").record.warnings)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"
TO_PULL = r"{} is a pointer of Git LFS, not the file itself\. Type git lfs pull"


@pytest.mark.parametrize(
    "name,content,said",
    [
        ("model.safetensors", POINTER, TO_PULL.format("model.safetensors")),
        ("config.json", POINTER, TO_PULL.format("config.json")),
        ("model.safetensors", "", r"cut off or damaged \(Error while .*\)\. Download it again"),
    ],
)
def test_a_partly_downloaded_folder_is_refused(gpt2, name, content, said):
    folder = gpt2()
    (folder / "broken.json").symlink_to(folder / "nothing")
    (folder / name).write_text(content)
    with pytest.raises(Refusal, match=said):
        config = pretrained.configuration(str(folder))
        pretrained.load_weights(transformers.AutoModelForCausalLM, str(folder), config, False, print)


def test_a_tokenizer_left_in_git_lfs_is_not_saved(tmp_path):
    saved(tmp_path / "model", transformers.GPT2LMHeadModel(config_of("gpt2")), word_tokenizer())
    (tmp_path / "model" / "tokenizer.json").write_text(POINTER)
    with pytest.raises(Refusal, match=TO_PULL.format("tokenizer.json") + r"[^.]*\.$"):
        tokens.Tokens(str(tmp_path / "model"))


# --- new heads --------------------------------------------------------------------------------------


def test_a_new_head_is_initialised_as_its_family(tmp_path):
    sizes = dict(vocab_size=40, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.ModernBertConfig(**sizes, pad_token_id=0, cls_token_id=1, sep_token_id=2)
    folder = saved(tmp_path / "model", other := transformers.ModernBertForTokenClassification(config))
    kind, read = transformers.AutoModelForSequenceClassification, pretrained.configuration(str(folder))
    model = pretrained.load_weights(kind, str(folder), read, True, print)
    drawn, new = kind.from_config(config).classifier.weight, model.classifier.weight
    assert not new.equal(other.classifier.weight) and 0.5 < new.std() / drawn.std() < 2
    assert all(weight.equal(theirs) for weight, theirs in zip(model.model.parameters(), other.model.parameters()))


def test_missing_weights_beside_the_head_are_refused(tmp_path):
    config = transformers.T5Config(vocab_size=40, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2)
    folder = saved(tmp_path / "t5", transformers.T5ForTokenClassification(config))
    kind, read = transformers.AutoModelForQuestionAnswering, pretrained.configuration(str(folder))
    with pytest.raises(Refusal, match="are not in the checkpoint: decoder"):
        pretrained.load_weights(kind, str(folder), read, True, print)


@pytest.mark.slow_for("BertForMaskedLM", "BertModel")
@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM", "GPT2LMHeadModel"])
def test_a_new_head_is_said_and_recorded(train, tmp_path, kind):
    config = config_of("gpt2" if "GPT2" in kind else "bert")
    folder = saved(tmp_path / "model", getattr(transformers, kind)(config), byte_tokenizer.byte_tokenizer())
    rows = [{"text": f"text {n}", "label": ["a", "b", "c"][n % 3]} for n in range(9)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = [f"model.pretrained={folder}", "data=text", f"data.path={tmp_path / 't.jsonl'}", "data.task=classification"]
    run = train(*told, "save.final=true")
    assert any("no classification head" in line and "3 classes" in line for line in run.record.warnings)
    written = transformers.AutoConfig.from_pretrained(run.folder / "model")
    assert written.id2label == {0: "a", 1: "b", 2: "c"} and written.label2id == {"a": 0, "b": 1, "c": 2}
    again = train(f"model.pretrained={run.folder / 'model'}", *told[1:], "train.learning_rate=0").record
    assert again.evaluation.loss == pytest.approx(run.record.evaluation.loss, rel=1e-6)
    assert not any("head" in line for line in again.warnings)


@pytest.mark.parametrize(
    "changes,word",
    [
        ({"problem_type": "multi_label_classification"}, "multi_label_classification"),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}}, "contradicts itself"),
    ],
)
def test_a_head_that_is_no_choice_of_one_class_is_refused(train, tmp_path, changes, word):
    folder = saved(tmp_path / "bert", transformers.BertForSequenceClassification(config_of("bert")))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    assert word in train(f"model.pretrained={folder}", status="refused").record.error.message


def test_an_adapter_beside_the_weights_is_refused(tmp_path):
    """transformers loads it or leaves it out, whether peft is in use or not, and says nothing."""
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(Refusal, match="scripts/export.py"):
        pretrained.call(dict, str(tmp_path))


# --- what config.json says --------------------------------------------------------------------------


def test_an_adapter_alone_is_named_with_its_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    [line] = compose(*small(f"model.pretrained={tmp_path}")).problems
    assert "adapter_config.json" in line and "model.pretrained=org/base" in line and "scripts/export.py" in line
    (tmp_path / "adapter_config.json").write_text("[")
    assert "its base model" in first_problem(f"model.pretrained={tmp_path}")


def say(folder, **changes):
    """Changes config.json of a folder; None removes a key."""
    values = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in values.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


@pytest.mark.parametrize("recipe", ["accelerate", "estimate"])
def test_code_that_config_json_names_is_not_run_and_said(train, gpt2, recipe):
    code = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}
    folder = say(gpt2(), auto_map=code)
    warnings = train(f"model.pretrained={folder}", f"recipe={recipe}").record.warnings
    assert any("modeling_x.XForCausalLM" in line and "GPT2LMHeadModel" in line for line in warnings)


@pytest.mark.parametrize("adapter,recipe", [("qlora", "accelerate"), ("none", "estimate")])
def test_quantised_weights_are_refused_in_words(train, gpt2, adapter, recipe):
    folder = say(gpt2(), quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    words = [f"model.pretrained={folder}", f"adapter={adapter}", f"recipe={recipe}"]
    message = train(*words, status="refused").record.error.message
    assert "quantization_config" in message and "bitsandbytes" in message and "adapter=qlora" in message
    assert "\n" not in message


@pytest.mark.parametrize("adapter,value", [("none", float("inf")), ("qlora", float("nan"))])
def test_weights_that_are_no_numbers_are_refused_by_name(train, gpt2, value, adapter):
    folder = gpt2()
    change(folder, lambda weights: weights["transformer.h.0.attn.c_attn.weight"][0].fill_(value))
    message = train(f"model.pretrained={folder}", f"adapter={adapter}", status="refused").record.error.message
    assert ("quantised" if adapter == "qlora" else "transformer.h.0.attn.c_attn.weight") in message
    assert "NaN" in message and "\n" not in message


@pytest.mark.parametrize("adapter,more", [("none", 0), ("none", 1)])
def test_contradictory_tied_weights_are_refused(train, gpt2, adapter, more):
    folder, embeddings = gpt2(), "transformer.wte.weight"
    change(folder, lambda weights: weights.update({"lm_head.weight": weights[embeddings] + more}))
    words = (f"model.pretrained={folder}", "data=dummy", f"adapter={adapter}")
    record = train(*words, status="refused" if more else "ok").record
    assert not more or f"lm_head.weight is {embeddings} (tie_word_embeddings)" in record.error.message


@pytest.mark.parametrize("family,kind", [("gpt2", "GPT2LMHeadModel"), ("bert", "BertForSequenceClassification")])
def test_without_architectures_the_family_decides(train, tmp_path, family, kind):
    saved_model = transformers.AutoModelForCausalLM if family == "gpt2" else transformers.BertForSequenceClassification
    config = config_of(family)
    model = saved_model.from_config(config) if family == "gpt2" else saved_model(config)
    record = train(
        "recipe=estimate", f"model.pretrained={say(saved(tmp_path / family, model), architectures=None)}"
    ).record
    assert record.model.architecture == kind
