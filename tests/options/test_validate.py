"""Every problem at once, in words, with what to type instead; and nothing that is ignored in silence."""

from __future__ import annotations

import pytest
from conftest import CONF, compose

from legroom import suggestions
from legroom.machine import host
from legroom.options import overrides, validate

# What a person typed, and the words that one line of the answer must hold.
WRONG_VALUES = [
    ("batch.per_device=0", "batch.per_device=0", "1"),
    ("train.learning_rate=-0.1", "train.learning_rate=-0.1", "0"),
    ("train.learning_rate=nan", "train.learning_rate"),
    ("train.learning_rate=inf", "train.learning_rate", "finite"),
    ("train.seed=4294967296", "train.seed=4294967296"),  # numpy takes 32 bits
    ("train.schedule=lineer", "train.schedule=lineer", "Did you mean linear"),
    ("model.layers=1000000000", "model.layers=1000000000", "below 2049"),  # built one by one
    ("model.width=10000000000000000000", "model.width=1", "at most"),  # torch counts in 64 bits
    ("model.dropout=1", "model.dropout=1", "below 1"),
    ("data.samples=null", "data.samples=null", "data.samples=512"),  # null: all rows of data that has an end
    ("eval.precision=bf61", "eval.precision=bf61", "bf16", "null"),
    ("launch.memory_limit_gib=0", "launch.memory_limit_gib"),
    ("device=gpu", "device=gpu", "auto, cpu, cuda"),
]


def has_line(problems, words):
    return any(all(word in line for word in words) for line in problems)


@pytest.mark.parametrize("override,words", [pytest.param(row[0], row[1:], id=row[0]) for row in WRONG_VALUES])
def test_a_wrong_value_is_refused_with_what_to_type(override, words):
    base = [] if override.startswith("device") else ["device=cpu"]
    assert has_line(compose(*base, override).problems, words), compose(*base, override).problems


@pytest.mark.parametrize(
    "override",
    ["train.max_grad_norm=0", "model.dropout=0.999", "batch.effective=null", "train.seed=4294967295"],
)
def test_a_value_at_the_edge_is_accepted(override):
    assert compose("device=cpu", override).problems == []


# --- keys that mean nothing to the chosen option ---------------------------------------------------


@pytest.mark.parametrize(
    "overrides,key,instead",
    [
        (["optim.momentum=0.5"], "optim.momentum", "optim=sgd"),
        (["optim=adafactor", "optim.beta1=0.5"], "optim.beta1", "optim=adamw"),
        (["data.path=x"], "data.path", "data=text"),
        (["data=text", "data.path=x", "data.eval_samples=4"], "data.eval_samples", "data=source"),
        (["model.kv_heads=2"], "model.kv_heads", "model=llama_tiny"),
        (["model.tied=false"], "model.tied", "model=gpt2_tiny"),
    ],
)
def test_unused_keys_name_the_option_that_uses_them(overrides, key, instead):
    assert has_line(compose("device=cpu", *overrides).problems, [key, instead])


@pytest.mark.parametrize(
    "override,menu",
    [
        ("model.name=gpt2", "model="),
        ("precision.name=bf16", "precision="),
        ("optim.name=sgd", "optim="),
        ("optim.transformers_name=lion_8bit", "optim="),
        ("optim.facts.package=x", "optim="),
        ("model.family=gpt2", "model="),  # the sizes of one family make no model of another
    ],
)
def test_keys_that_make_an_option_cannot_be_set(override, menu):
    assert has_line(overrides.problems([override], [CONF], False), [override.split("=")[0], menu])


@pytest.mark.parametrize("key", ["width=64", "dropout=0.1"])
def test_a_size_means_nothing_to_trained_weights(key, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    found = compose("device=cpu", f"model.pretrained={tmp_path}", f"model.{key}").problems
    assert has_line(found, [f"model.{key.split('=')[0]}", "model.pretrained"])


@pytest.mark.parametrize(
    "words, said",
    [
        ("eval.enabled=false eval.precision=bf16", "eval.precision=bf16 does not go with eval.enabled=false"),
        ("model=gpt2_tiny data=source eval.max_samples=3", "ignored beside data.eval_samples=32. Type"),
        (
            "model.learning_rate=1 train.learning_rate=2",
            "model.learning_rate would be ignored",
        ),
    ],
)
def test_a_key_that_another_one_decides_is_refused(words, said):
    (problem,) = compose("device=cpu", *words.split()).problems
    assert said in problem


# --- pairs of keys ---------------------------------------------------------------------------------


def test_the_accumulation_is_derived_from_the_effective_batch():
    assert compose("device=cpu", "batch.per_device=4", "batch.effective=12").cfg.accumulation.steps == 3


@pytest.mark.parametrize(
    "overrides,words",
    [
        (["batch.effective=2"], ["batch.effective=2", "batch.per_device=4"]),
        (["train.floor=0.1"], ["train.floor", "train.schedule=cosine"]),
        (["train.schedule=cosine", "train.decay_steps=2"], ["train.decay_steps", "train.schedule=wsd"]),
        (["train.schedule=wsd", "train.decay_steps=3", "train.max_steps=2"], ["train.max_steps=2"]),
        (["data=text", "data.path=no/such/file.txt"], ["data.path=no/such/file.txt", "no such file"]),
        (["optim=paged_adam8bit"], ["optim=paged_adam8bit", "optim=adam8bit"]),
        (["model.attention=flash_attention_2"], ["model.attention=flash_attention_2", "model.attention=sdpa"]),
        (["model.pretrained=./no/such/folder"], ["model.pretrained=./no/such/folder", "no such folder"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_values_that_do_not_go_together_are_refused(overrides, words):
    found = compose("device=cpu", *overrides).problems
    assert has_line(found, words), found


def test_random_ids_need_no_vocabulary_of_bytes():
    assert not compose("device=cpu", "model.vocab=256").problems


def test_many_more_ranks_than_cores_are_refused(monkeypatch):
    monkeypatch.setattr(host, "usable_cores", lambda: 2)
    ranks = ("parallelism=ddp", "parallelism.num_processes=5", "device=cpu")
    (problem,) = compose(*ranks).problems
    assert "parallelism.num_processes=2" in problem and "launch.oversubscribe=true" in problem
    assert not compose(*ranks, "launch.oversubscribe=true").problems
    assert not compose(*ranks, "parallelism.num_processes=4").problems
    assert not compose(*ranks, "recipe=estimate", "gpu=t4_16gb", "device=auto").problems


def test_cuda_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ())
    assert has_line(compose("device=cuda").problems, ["device=cuda", "device=cpu"])


@pytest.mark.parametrize(
    "overrides,count",
    [
        (["batch.per_device=0", "train.seed=-1", "model.dropout=2", "device=gpu"], 4),
        (["optim.momentum=0.1", "data.path=x", "batch.per_device=0"], 3),
        (["model.heads=3", "data.seq_len=1024", "precision=fp16", "optim=paged_adam8bit", "batch.effective=10"], 5),
    ],
    ids=str,
)
def test_all_problems_are_named_at_once(overrides, count):
    problems = compose(*(["device=cpu"] if "device=gpu" not in overrides else []), *overrides).problems
    for override in overrides:
        assert has_line(problems, [override.split("=")[0]]), (override, problems)
    assert len(problems) == count


def test_the_nearest_names_are_offered_and_strangers_are_not():
    assert suggestions.nearest("adam8bits", ["adam8bit", "adamw"]).startswith(" Did you mean adam8bit")
    assert suggestions.nearest("qwertz", ["adam8bit", "adamw"]) == ""


# --- what is derived, and what deserves a word -----------------------------------------------------


@pytest.mark.parametrize(
    "overrides,rate",
    [
        ([], 1e-3),
        (["model=gpt2_tiny"], 3e-3),
        (["model=bert_large"], 5e-5),
        (["train.learning_rate=0.25"], 0.25),
        (["model.learning_rate=0.5"], 0.5),
    ],
    ids=str,
)
def test_the_learning_rate_is_the_models_where_none_is_given(overrides, rate):
    assert compose("device=cpu", *overrides).cfg.train.learning_rate == rate


def test_pretrained_weights_get_the_fine_tuning_rate(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert compose("device=cpu", f"model.pretrained={tmp_path}").cfg.train.learning_rate == 5e-5


@pytest.mark.parametrize(
    "override", ["batch.per_device=3", "data.seq_len=30", "model.feed_forward=100", "model.vocab=1001"]
)
def test_sizes_that_are_no_multiple_of_8_deserve_a_warning(override):
    cfg = compose("device=cpu", override).cfg
    assert has_line(validate.warnings(cfg), [override, "8"])


@pytest.mark.parametrize("model", ["bert_large", "gpt2_xl", "llama_8b"])
def test_the_published_sizes_deserve_none(model):
    assert validate.warnings(compose("device=cpu", f"model={model}").cfg) == []
