"""model: the published sizes, trained weights from a folder, and what is said of those that cannot be had."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from conftest import compose, small
from safetensors.torch import save_file

from legroom.data import dataset
from legroom.errors import Refusal
from legroom.models import builder
from legroom.options import hooks, model_families, task

RECIPES = ["trainer", "accelerate"]


# --- the published sizes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,parameters",
    [
        # The papers and model cards say 110 M, 340 M (335 M without the heads of pre-training), 124 M, 1.5 B, 1.23 B
        # and 8.03 B.
        ("bert_base", 109_482_240 + 2 * 768 + 2),  # the encoder with its pooler, and two classes
        ("bert_large", 335_141_888 + 2 * 1024 + 2),
        ("gpt2", 124_439_808),
        ("gpt2_xl", 1_557_611_200),
        ("llama_1b", 1_235_814_400),
        ("llama_8b", 8_030_261_248),
    ],
)
def test_published_sizes_have_the_published_parameters(name, parameters):
    cfg = compose(f"model={name}", "device=cpu").cfg
    rows = dataset.Data(task.task(cfg), None, None, None, vocab=257, classes=2)
    with torch.device("meta"):  # shapes without memory
        network = builder.build_model(cfg, builder.configuration(cfg), rows, hooks.behaviours(cfg))
    assert sum(weight.numel() for weight in network.parameters()) == parameters


@pytest.mark.parametrize("name,dropout", [("bert_large", 0.1), ("gpt2_xl", 0.1), ("llama_8b", 0.0), ("bert_tiny", 0.0)])
def test_the_dropout_is_the_published_one(name, dropout):
    cfg = compose(f"model={name}", "device=cpu").cfg
    config = builder.configuration(cfg)
    assert {
        getattr(config, key) for key in model_families.DROPOUTS.get(cfg.model.family, model_families.USUAL_DROPOUTS)
    } == {dropout}


def test_a_size_reaches_the_model(train):
    """Embeddings 300 x 48 and 40 x 48, tied to the output; two layers; the last norm."""
    layer = 2 * 2 * 48 + (48 * 144 + 144) + (48 * 48 + 48) + (48 * 100 + 100) + (100 * 48 + 48)
    record = train(
        "model=gpt2_tiny",
        "model.layers=2",
        "model.width=48",
        "model.heads=3",
        "model.feed_forward=100",
        "model.vocab=300",
        "model.positions=40",
    ).record
    assert record.memory.parameter_count == 300 * 48 + 40 * 48 + 2 * layer + 2 * 48


@pytest.mark.parametrize("name", ["gpt2_tiny", "llama_tiny"])
def test_an_output_layer_of_its_own_costs_its_weights(train, name):
    tied, untied = (
        train(f"model={name}", f"model.tied={tied}").record.memory.parameter_count for tied in ("true", "false")
    )
    assert untied - tied == 512 * 32


@pytest.mark.slow_for("gpt2_tiny")
@pytest.mark.parametrize("name", ["bert_tiny", "gpt2_tiny", "llama_tiny"])
def test_eager_attention_is_the_same_mathematics(train, name):
    fused, eager = (train(f"model={name}", f"model.attention={option}").record for option in ("sdpa", "eager"))
    assert fused.training.losses == pytest.approx(eager.training.losses, rel=1e-5)
    assert fused.speed.model_flops_per_step == eager.speed.model_flops_per_step


# --- saved and loaded again ------------------------------------------------------------------------


def loss_of(network, rows) -> float:
    """Mean loss over rows of one length, all in one batch."""
    with torch.no_grad():
        return network.eval()(input_ids=rows[:]["input_ids"], labels=rows[:]["labels"]).loss.item()


CLASS = {
    "bert_tiny": transformers.AutoModelForSequenceClassification,
    "gpt2_tiny": transformers.AutoModelForCausalLM,
    "llama_tiny": transformers.AutoModelForCausalLM,
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", CLASS)
def test_a_saved_model_opens_and_is_the_trained_one(train, recipe, name):
    words = [f"recipe={recipe}", f"model={name}", "save.final=true", "train.learning_rate=0.01", "train.max_steps=4"]
    run = train(*words)
    assert {path.name for path in (run.folder / "model").iterdir()} >= {"config.json", "model.safetensors"}
    network = CLASS[name].from_pretrained(run.folder / "model")
    cfg = compose(*small(*words)).cfg
    rows = dataset.build_data(cfg, task.task(cfg), 512).eval
    assert loss_of(network, rows) == pytest.approx(run.record.evaluation.loss, rel=1e-5)
    assert network.config.use_cache is True, "for whoever generates with it"
    assert network.dtype == torch.float32


def test_nothing_is_saved_unasked(train):
    assert not (train().folder / "model").exists()


@pytest.fixture(scope="module")
def saved(train):
    """Folders of saved models by name, and what each lost in its evaluation."""
    found = {}
    for name in CLASS:
        run = train(f"model={name}", "save.final=true", "train.learning_rate=0.01", "train.max_steps=4")
        found[name] = run.folder / "model", run.record.evaluation.loss
    return found


@pytest.mark.slow_for("bert_tiny-trainer")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", CLASS)
def test_trained_weights_are_gone_on_with(train, saved, recipe, name):
    """With a learning rate of 0 the loaded model evaluates as the saved one did."""
    folder, loss = saved[name]
    record = train(f"recipe={recipe}", f"model.pretrained={folder}", "train.learning_rate=0").record
    assert record.evaluation.loss == pytest.approx(loss, rel=1e-6)
    assert (record.evaluation.accuracy is None) == (name != "bert_tiny"), "its task is the one it was saved with"


def test_weights_are_loaded_in_the_kept_type(train, saved):
    record = train(f"model.pretrained={saved['gpt2_tiny'][0]}", "precision=bf16_pure").record
    assert record.memory.weights_bytes == 2 * record.memory.parameter_count


def test_trained_weights_may_lie_in_several_files(train, saved, tmp_path):
    folder, loss = saved["gpt2_tiny"]
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    record = train(f"model.pretrained={tmp_path}", "train.learning_rate=0").record
    assert record.evaluation.loss == pytest.approx(loss, rel=1e-6)


def test_a_decoder_can_be_given_classes(train, saved, tmp_path):
    rows = [{"text": "word " * (n + 1), "label": n % 3} for n in range(9)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["data=text", f"data.path={tmp_path / 'texts.jsonl'}", "data.task=classification", "data.tokenizer=bytes"]
    assert train(f"model.pretrained={saved['gpt2_tiny'][0]}", *words).record.evaluation.accuracy is not None


# --- what cannot be loaded -------------------------------------------------------------------------


def problems_of(folder, *more) -> str:
    return "\n".join(compose(*small(f"model.pretrained={folder}", *more)).problems)


def test_pickled_weights_are_refused_before_the_job(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickled")
    line = problems_of(tmp_path)
    assert str(tmp_path) in line and "safetensors" in line and "save_pretrained" in line


def test_pickled_weights_are_never_loaded(train, saved, tmp_path):
    """A .safetensors file that is not the model's does not open the door to the .bin file that is."""
    network = transformers.AutoModelForCausalLM.from_pretrained(saved["gpt2_tiny"][0])
    network.config.save_pretrained(tmp_path)
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    save_file({"other": torch.ones(2)}, tmp_path / "adapter.safetensors")
    record = train(f"model.pretrained={tmp_path}", status="refused").record
    assert "safetensors" in record.error.message


@pytest.mark.parametrize(
    "files,word",
    [({}, "config.json"), ({"config.json": "{"}, "config.json"), ({"config.json": "{}"}, "safetensors")],
    ids=str,
)
def test_a_folder_without_a_saved_model_is_refused(tmp_path, files, word):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    if word == "config.json" and files:
        (tmp_path / "model.safetensors").touch()
    assert word in problems_of(tmp_path)


@pytest.mark.parametrize("config", ["{}", '{"model_type": "no_such_family"}', '{"model_type": "gpt2"}'])
def test_weights_that_cannot_be_read_are_refused_in_words(train, tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").write_bytes(b"cut off in the mid")
    record = train(f"model.pretrained={tmp_path}", "data.seq_len=8", status="refused").record
    assert f"model.pretrained={tmp_path}" in record.error.message and "\n" not in record.error.message


LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (LLAMA | {"hidden_size": "wide"}, "expected int, got str"),
        (LLAMA | {"hidden_size": 65}, "not a multiple of the number of attention heads"),
        (LLAMA | {"num_attention_heads": 0}, "by zero"),
        ({"model_type": "gpt2", "n_embd": 65, "n_head": 4}, "Correct the sizes there."),
        ({"model_type": "bert", "vocab_size": 0}, "Correct the sizes there."),
    ],
)
def test_sizes_that_make_no_model_are_refused_in_words(train, tmp_path, config, says):
    (tmp_path / "config.json").write_text(json.dumps(config))
    record = train(f"model.pretrained={tmp_path}", "recipe=estimate", status="refused").record
    assert f"model.pretrained={tmp_path}" in record.error.message and "\n" not in record.error.message
    assert says in record.error.message


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (LLAMA | {"num_hidden_layers": -1}, "num_hidden_layers=-1"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000"),
        ({"model_type": "gpt2", "n_layer": 0}, "n_layer=0"),
        ({"model_type": "mixtral", "num_local_experts": 10**9}, "num_local_experts=1000000000"),
        ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 1e9}}, "num_hidden_layers=1000000000.0"),
        ({"model_type": "bert", "num_labels": 10**9}, "num_labels=1000000000"),
    ],
)
def test_impossible_counts_in_config_json_are_refused(tmp_path, config, says):
    (tmp_path / "config.json").write_text(json.dumps(config | {"vision_config": {"vision_feature_layer": -2}}))
    (line,) = compose(f"model.pretrained={tmp_path}", "recipe=estimate", "gpu=t4_16gb").problems
    assert says in line and f"model.pretrained={tmp_path}" in line
    with pytest.raises(Refusal, match=says):  # as one that came from the hub
        builder.configuration(compose(f"model.pretrained={tmp_path}", "recipe=estimate", "gpu=t4_16gb").cfg)


def test_code_from_a_folder_is_never_run(train, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}})
    )
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\n")
    (tmp_path / "model.safetensors").touch()
    train(f"model.pretrained={tmp_path}", status="refused")
    assert not (tmp_path / "was-run").exists()


def test_a_hub_id_without_a_network_says_what_to_do(train):
    record = train("model.pretrained=nobody/no-such-model", status="refused").record
    message = record.error.message
    assert record.error.phase == "load" and "\n" not in message
    assert all(word in message for word in ("nobody/no-such-model", "hub", "network", "folder", "safetensors")), message


def test_rows_beyond_the_trained_positions_are_refused(train, saved):
    record = train(f"model.pretrained={saved['gpt2_tiny'][0]}", "data.seq_len=128", status="refused").record
    assert "data.seq_len=128" in record.error.message and "data.seq_len=64" in record.error.message


def test_a_pretrained_vocabulary_that_is_too_small_is_refused(train, saved, tmp_path):
    network = transformers.AutoModelForCausalLM.from_pretrained(saved["gpt2_tiny"][0])
    network.resize_token_embeddings(100)
    network.save_pretrained(tmp_path)
    record = train(f"model.pretrained={tmp_path}", "data=source", status="refused").record
    assert "vocabulary" in record.error.message and "data.tokenizer" in record.error.message
