"""What the rules of sections say of many values, both sides of every condition and both neighbours of every threshold:
kept beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import CONF
from support.changed_config import changed, heads, table
from support.known_values import known

from legroom.config.fields import Facts
from legroom.config.target import Target
from legroom.machine import host
from legroom.options import (
    batch,
    estimate,
    gpu,
    measure,
    model,
    model_families,
    requirements,
    save,
    task,
    tracker,
    train,
)
from legroom.options import data as data_options
from legroom.options import eval as eval_options


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_MODE", "WANDB_DISABLED"):
        monkeypatch.delenv(name, raising=False)


# --- batch -----------------------------------------------------------------------------------------


def test_half_a_batch_in_twice_the_steps_is_offered_where_it_is_possible(data_regression):
    lines = """
    batch.per_device=1
    batch.per_device=2
    batch.per_device=3
    batch.per_device=4 accumulation.steps=2
    batch.per_device=4 accumulation.steps=3
    batch.per_device=4 accumulation.steps=4
    batch.per_device=6 accumulation.steps=8
    batch.per_device=6 accumulation.steps=16
    batch.per_device=6 accumulation.steps=16 batch.effective=96
    batch.per_device=4 parallelism.static_graph=true
    batch.per_device=4 parallelism.static_graph=false
    batch.per_device=4 batch.effective=4
    """

    def offered(cfg, _):
        return [[lever.overrides, int(lever.cost or 0), lever.helps_in] for lever in batch.memory_levers(cfg)]

    data_regression.check(known(table(lines, offered)))


def test_a_batch_that_is_larger_than_the_data_is_refused(data_regression):
    lines = """
    data.samples=8 batch.per_device=8 parallelism.replicas=1
    data.samples=7 batch.per_device=8 parallelism.replicas=1
    data.samples=1 batch.per_device=8 parallelism.replicas=1
    data.samples=1 batch.per_device=1 parallelism.replicas=1
    data.samples=15 batch.per_device=8 parallelism.replicas=2
    data.samples=16 batch.per_device=8 parallelism.replicas=2
    data.samples=1 batch.per_device=8 parallelism.replicas=2
    data.samples=7 batch.per_device=8 parallelism.replicas=null
    data.samples=8 batch.per_device=8 parallelism.replicas=null
    data.samples=null batch.per_device=8
    data.samples=7 batch.per_device=8 data.name=source
    data.samples=7 batch.per_device=8 data.name=text
    data.samples=7 batch.per_device=8 recipe.name=estimate
    """

    def said(cfg, given):
        if cfg.parallelism.replicas is None and (cfg.data.samples or 0) < cfg.batch.per_device:
            with pytest.raises(TypeError):
                batch.problems(cfg, given)
            return "never asked: `resolve` has found a problem"
        return batch.problems(cfg, given)

    found = table(lines, said)
    cfg, _ = changed("batch.per_device=8 parallelism.replicas=1")
    found["packed"] = [batch.larger_than_data(cfg, count, "packed row") for count in (0, 1, 1500)]
    data_regression.check(known(found))


EXPERIMENTS = {
    "plain": "batch:\n  per_device: 8\n",
    "menu": "defaults:\n  - override /accumulation: x4\n  - _self_\nbatch:\n  per_device: 2\n",
    "steps": "batch:\n  per_device: 2\naccumulation:\n  steps: 3\nparallelism:\n  num_processes: 2\n",
    "none": "train:\n  seed: 1\n",
}


def test_the_advice_on_the_rate_of_an_experiment(data_regression, tmp_path):
    for name, text in EXPERIMENTS.items():
        (tmp_path / "experiment/own").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"experiment/own/{name}.yaml").write_text(text)
    lines = """
    batch.per_device=8 train.learning_rate=0.001
    batch.per_device=16 train.learning_rate=0.001
    batch.per_device=4 train.learning_rate=0.001 accumulation.steps=3
    batch.per_device=4 train.learning_rate=0.001 parallelism.replicas=4
    batch.per_device=12 train.learning_rate=0.001 parallelism.replicas=null
    batch.per_device=16 train.learning_rate=0.001 train.warmup_steps=100
    batch.per_device=16 train.learning_rate=0.0
    batch.per_device=16 train.learning_rate=0.001 parallelism.name=dp
    batch.per_device=16 train.learning_rate=0.001 recipe.name=estimate
    """

    def said(cfg, _):
        typed = [[f"+experiment/own={name}"] for name in (*EXPERIMENTS, "absent")]
        typed += [["++experiment/own=plain"], ["+experiment/own=plain", "+experiment/own=menu"], ["train.seed=1"]]
        typed += [["+experiment/own=plain", f"{plus}train.learning_rate=1"] for plus in ("", "+")]
        return {" ".join(each): batch.rate_advice(cfg, each, [tmp_path, CONF]) for each in typed}

    data_regression.check(known(table(lines, said)))


# --- data ------------------------------------------------------------------------------------------

# Of data that has its rows in files, a.txt, a.csv, a.jsonl and a.parquet lie in the working folder.
DATA = """
data.name=dummy
data.name=dummy data.samples=null
data.name=dummy data.task=chat
data.name=dummy data.task=regression
data.name=dummy data.path=absent.txt
data.name=source model.vocab=257
data.name=source model.vocab=256
data.name=source model.vocab=256 model.pretrained=a/b
data.name=source data.samples=null
data.name=source data.task=masked_lm
data.name=source data.task=classification
data.name=dummy data.tokenizer=bytes model.vocab=256
data.name=text
data.name=chat
data.name=text data.path=absent.txt
data.name=text data.path=a.txt
data.name=text data.path=a.txt data.task=chat
data.name=text data.path=a.txt data.task=regression
data.name=text data.path=a.txt data.task=multi_label
data.name=text data.path=a.txt data.task=classification
data.name=text data.path=a.txt data.task=language_modelling
data.name=text data.path=a.txt data.task=question_answering
data.name=text data.path=a.txt model.family=gpt2
data.name=text data.path=a.jsonl data.eval_path=a.txt
data.name=text data.path=a.jsonl data.eval_path=absent.jsonl
data.name=chat data.path=a.txt
data.name=chat data.path=a.jsonl
data.name=chat data.path=a.jsonl data.task=language_modelling
data.name=text data.path=a.jsonl data.documents=line
data.name=text data.path=a.txt data.documents=line data.task=language_modelling
data.name=text data.path=a.jsonl data.separator=comma
data.name=text data.path=a.csv data.separator=comma
data.name=text data.path=a.tsv data.separator=tab
data.name=text data.path=a.parquet data.encoding=utf-8
data.name=text data.path=a.csv data.encoding=utf-8
data.name=text data.path=a.csv data.encoding=utf-9
data.name=wikitext
data.name=wikitext data.separator=comma
data.name=wikitext data.separator=comma data.path=published
data.name=wikitext data.path=published
data.name=wikitext data.path=a.csv
data.name=mrpc data.path=published
data.name=mrpc data.task=regression
data.name=hub
data.name=hub data.path=a/b
data.name=hub data.path=a/b/c
data.name=hub data.path=./absent
data.name=hub data.path=~absent
data.name=hub data.path=published
data.name=hub data.path=./published
data.name=hub data.path=a/b data.task=chat
data.name=text data.path=a.jsonl data.mask_share=0.1
data.name=text data.path=a.jsonl data.whole_words=true
data.name=text data.path=a.jsonl data.whole_words=true data.mask_share=0.1
data.name=text data.path=a.jsonl data.whole_words=true data.task=masked_lm
data.name=text data.path=a.jsonl data.whole_words=false
data.name=text data.path=a.jsonl data.group_by_length=true
data.name=text data.path=a.jsonl data.group_by_length=true data.task=masked_lm
data.name=text data.path=a.jsonl data.group_by_length=false data.task=masked_lm
data.name=chat data.path=a.jsonl data.group_by_length=true
data.name=text data.path=a.jsonl model.pretrained=a/b data.group_by_length=true
data.name=text data.path=a.jsonl +data.text_column
data.name=text data.path=a.jsonl +data.text_column data.task=question_answering
data.name=chat data.path=a.jsonl +data.text_column
data.name=text data.path=a.jsonl +data.label_column +data.pair_column
data.name=text data.path=a.jsonl +data.label_column +data.pair_column data.task=masked_lm
data.name=text data.path=a.jsonl +data.label_column model.pretrained=a/b
data.name=text data.path=a.jsonl +data.messages_column +data.train_on
data.name=chat data.path=a.jsonl +data.messages_column +data.prompt_column +data.completion_column +data.train_on
data.name=text data.path=a.jsonl +data.eval_fraction=0.1
data.name=text data.path=a.jsonl +data.eval_fraction=0.1 data.eval_path=a.jsonl
data.name=text data.path=a.jsonl +data.eval_fraction=0 data.eval_path=a.jsonl
data.name=hub data.path=a/b +data.eval_fraction=0.1 data.eval_split=test
data.name=text data.path=a.jsonl data.eval_fraction=0.1 data.eval_path=a.jsonl
"""


def data_files() -> None:
    for name in ("a.txt", "a.csv", "a.tsv", "a.jsonl", "a.parquet"):
        Path(name).write_text("x")
    Path("published").mkdir()
    for split in ("train", "validation"):
        Path(f"published/{split}.jsonl").write_text("{}")


def test_the_refusals_of_data(data_regression):
    data_files()
    found = table(DATA, lambda cfg, given: heads(data_options.problems(cfg, given)), "model=bert_tiny")
    data_regression.check(known(found))


def test_the_tokenizer_of_a_folder_of_weights(data_regression):
    for name in ("own", "without", "images", "broken", "listed"):
        Path(name).mkdir()
        Path(f"{name}/config.json").write_text("{}")
    Path("images/config.json").write_text('{"image_size": 224}')
    Path("broken/config.json").write_text("{")
    Path("listed/config.json").write_text("[]")
    Path("own/vocab.txt").write_text("a")
    Path("empty").mkdir()
    found = {}
    for name in ("own", "without", "images", "broken", "listed", "empty", "a/b"):
        for tokenizer in (name, "other", "bytes"):
            line = f"data.name=hub data.path=c/d model.pretrained={name} data.tokenizer={tokenizer} model.vocab=512"
            found[f"{name} {tokenizer}"] = heads(data_options.problems(*changed(line)), 60)
    for line in ("data.name=text", "data.name=dummy", "data.name=text data.tokenizer=c/d"):
        for pretrained in ("null", "a/b"):
            cfg, _ = changed(f"model.pretrained={pretrained} {line}")
            found[f"{line} of {pretrained}"] = [data_options.resolve(cfg), cfg.data.tokenizer]
    data_regression.check(known(found))


def test_odd_sizes_and_the_settings_of_the_loader(data_regression):
    sizes = "\n".join(f"batch.per_device={size} data.seq_len={16 - size}" for size in (1, 2, 3, 4, 5, 8))
    lines = f"{sizes}\nbatch.per_device=12 data.seq_len=12\nbatch.per_device=16 data.seq_len=64"
    found: dict[str, Any] = {"warnings": table(lines, lambda cfg, _: data_options.warnings(cfg))}
    for pinned in (True, False):
        for device in ("cpu", "cuda"):
            for workers in (0, 1):
                cfg, _ = changed(f"data.pin_memory={pinned} data.workers={workers}")
                cfg.target = Target(device, None)
                found[f"pinned={pinned} {device} {workers}"] = data_options.training_arguments(cfg)
    windows = [(8, None, None), (8, 4, None), (8, None, 2), (8, 6, 3), (8, 2, 1)]
    for length, window, stride in windows:
        line = f"data.seq_len={length} eval.window={window or 'null'} eval.stride={stride or 'null'}"
        found[line] = data_options.window_and_stride(changed(line)[0])
    data_regression.check(known(found))


# --- eval, estimate, measure -----------------------------------------------------------------------

ASKED = ("eval.every_steps=2", "eval.generate=4", "eval.window=16", "eval.stride=4", "eval.window=16 eval.stride=4")
WHERE = (
    "data.name=text",
    "data.name=dummy",
    "data.name=text eval.enabled=false",
    "data.name=text eval.precision=bf16",
    "data.name=text data.task=masked_lm",
    "data.name=text data.task=regression",
    "data.name=text model.family=bert",
    "data.name=text model.family=bert model.pretrained=a/b",
    "data.name=text data.task=chat",
    "data.name=chat",
    "data.name=text parallelism.name=fsdp",
    "data.name=text parallelism.name=fsdp_tp",
    "data.name=text parallelism.name=pipeline",
    "data.name=text parallelism.name=zero",
    "data.name=text parallelism.name=ddp",
    "data.name=source",
)


def test_the_refusals_of_eval(data_regression):
    lines = [f"{where} {asked}" for where in WHERE for asked in ASKED]
    lines += [f"data.name=text eval.window={window} eval.stride={stride}" for window in (4, 5) for stride in (4, 5, 6)]
    lines += [f"data.name=source data.seq_len=16 eval.window=32 eval.stride={stride}" for stride in (15, 17, 32, 33)]
    lines += [f"data.name=text data.seq_len=16 eval.stride={stride}" for stride in (15, 17)]
    found = table("\n".join(lines), lambda cfg, given: heads(eval_options.problems(cfg, given)), "model=gpt2_tiny")
    for generate in (None, 0, 3):
        cfg, _ = changed("")
        cfg.eval.generate = generate
        found[f"generate {generate}"] = [eval_options.resolve(cfg), cfg.eval.generate]
    data_regression.check(known({line: said for line, said in found.items() if said}))


def test_the_keys_of_an_estimate_alone(data_regression):
    lines = """
    +estimate.explain +estimate.hint_seconds +estimate.margin
    +estimate.explain +estimate.margin accumulation.name=auto
    +estimate.explain +estimate.hint_seconds +estimate.margin recipe.name=estimate
    +estimate.hint_seconds accumulation.name=auto
    estimate.explain=true
    """
    found = table(lines, lambda cfg, given: estimate.problems(cfg, given))
    more = [
        f"measure.operations={on} parallelism.name={name} recipe.name={recipe}"
        for on in ("true", "false")
        for name in ("dp", "zero", "ddp")
        for recipe in ("trainer", "estimate")
    ]
    found |= table("\n".join(more), lambda cfg, given: heads(measure.problems(cfg, given)))
    data_regression.check(known({line: said for line, said in found.items() if said}))


# --- gpu -------------------------------------------------------------------------------------------

GPU = """
gpu.machines=1
gpu.machines=1 gpu.machine_link_gb_per_second=50
gpu.machines=1 gpu.machine_link_gb_per_second=50 recipe.name=raw_loop
gpu.machines=2
gpu.machines=2 gpu.machine_link_gb_per_second=50
gpu.machines=2 recipe.name=raw_loop
gpu.machines=2 device=cpu
gpu.machines=2 parallelism.name=dp gpu.machine_link_gb_per_second=50
gpu.machines=2 parallelism.name=ddp gpu.machine_link_gb_per_second=50 parallelism.num_processes=15
gpu.machines=2 parallelism.name=ddp gpu.machine_link_gb_per_second=50 parallelism.num_processes=16
gpu.machines=4 parallelism.name=ddp gpu.machine_link_gb_per_second=50 parallelism.num_processes=2
gpu.machines=2 parallelism.name=ddp gpu.machine_link_gb_per_second=50 parallelism.num_processes=null
gpu.machines=3 parallelism.name=fsdp
gpu.machines=null
precision.name=fp32
precision.name=fp32 gpu.fp32_tflops=null
precision.name=tf32 gpu.tf32_tflops=null
precision.name=bf16_pure gpu.bf16_tflops=null
precision.name=fp8 gpu.bf16_tflops=null
precision.name=fp8 gpu.bf16_tflops=null device=cpu
precision.name=fp8 gpu.bf16_tflops=null gpu.name=auto
precision.name=fp8 gpu.bf16_tflops=null recipe.name=raw_loop
device=cpu
device=cpu recipe.name=trainer
device=cuda recipe.name=trainer
gpu.name=auto recipe.name=trainer
gpu.name=auto device=cpu
"""


def test_the_refusals_of_gpu(data_regression, monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ())
    base = ("recipe=estimate", "gpu=h100_80gb", "device=auto")
    found = {"of an estimate": table(GPU, lambda cfg, given: heads(gpu.problems(cfg, given), 160), *base)}
    monkeypatch.setattr(host, "gpus", lambda: (host.Gpu("GPU-0", "NVIDIA H100 80GB HBM3", 80 * 2**30, (9, 0)),))
    lines = "gpu.name=h100_80gb\ngpu.name=h200_141gb\ngpu.name=h100_80gb device=cpu"
    found["installed"] = table(
        lines, lambda cfg, given: heads(gpu.problems(cfg, given)), "gpu=h100_80gb", "device=auto", "recipe=estimate"
    )
    data_regression.check(known(found))


def test_the_gpu_at_hand_is_predicted_for(data_regression, monkeypatch):
    found = {}
    here = {
        "none": (),
        "known": (host.Gpu("GPU-0", "NVIDIA H100 80GB HBM3", 79 * 2**30, (9, 0)), host.Gpu("GPU-1", "x", 1, (1, 0))),
        "unknown": (host.Gpu("GPU-0", "NVIDIA Own", 2**30, (9, 0)),),
    }
    lines = """
    recipe.name=estimate gpu.name=auto device=cuda
    recipe.name=estimate gpu.name=auto device=cpu
    recipe.name=estimate gpu.name=h200_141gb device=cuda
    recipe.name=trainer gpu.name=auto device=cuda
    """
    for name, gpus in here.items():
        monkeypatch.setattr(host, "gpus", lambda gpus=gpus: gpus)

        def resolved(cfg, _):
            cfg.gpu.machines, cfg.gpu.price_per_hour = 3, 1.5
            said = heads(gpu.resolve(cfg), 60)
            kept = (cfg.gpu.name, cfg.gpu.device_name, cfg.gpu.memory_bytes, cfg.gpu.capability, cfg.gpu.bf16_tflops)
            return [*said, *kept, cfg.gpu.machines, cfg.gpu.price_per_hour, cfg.target.gpu is not None]

        found[name] = table(lines, resolved)
    data_regression.check(known(found))


def test_the_ranks_that_share_a_copy(data_regression, monkeypatch):
    lines = """
    parallelism.num_processes=16 gpu.machines=1
    parallelism.num_processes=16 gpu.machines=2
    parallelism.num_processes=2 gpu.machines=4
    parallelism.num_processes=null gpu.machines=null
    parallelism.num_processes=7 gpu.machines=2
    parallelism.num_processes=16 gpu.machines=2 parallelism.shard_size=4
    """

    def both(cfg, _):
        return [gpu.ranks_per_machine(cfg), gpu.sharding_group(cfg)]

    found = {"alone": table(lines, both)}
    values = {"MASTER_ADDR": "localhost", "RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    data_regression.check(known(found | {"launched": table(lines, both)}))


# --- model -----------------------------------------------------------------------------------------

MODEL = """
model.width=64 model.heads=4
model.width=63 model.heads=4
model.width=63 model.heads=4 model.config={head_dim:16}
model.width=63 model.heads=4 model.config={other:16}
model.width=12 model.heads=4
model.width=12 model.heads=4 model.family=llama
model.width=8 model.heads=4 model.family=llama
model.heads=4 model.kv_heads=3
model.heads=4 model.kv_heads=2
model.heads=4 model.kv_heads=null
model.experts=4 model.experts_per_token=4 model.width=64 model.feed_forward=128
model.experts=4 model.experts_per_token=5 model.width=64 model.feed_forward=128
model.experts=4 model.experts_per_token=2 model.width=68 model.feed_forward=128
model.experts=4 model.experts_per_token=2 model.width=64 model.feed_forward=132
model.experts=4 model.experts_per_token=2 model.width=68 model.feed_forward=132
model.experts=null model.experts_per_token=2 model.width=68
model.experts=4 model.experts_per_token=null model.width=68
data.seq_len=64 model.positions=64
data.seq_len=65 model.positions=64
data.seq_len=64 model.positions=64 eval.window=65
data.seq_len=65 model.positions=64 eval.window=65
data.seq_len=64 model.positions=64 eval.window=64
data.name=source
data.name=source model.family=gpt2
data.name=source data.task=masked_lm
data.task=classification model.classes=1
data.task=classification model.classes=2
data.task=regression model.classes=1
+model.classes data.task=regression
+model.classes data.task=multi_label
+model.classes data.task=classification
+model.classes data.name=source model.family=gpt2
+model.classes model.pretrained=a/b data.name=text
model.classes=3 data.task=regression
model.pretrained=a/b/c
model.pretrained=a/b
model.pretrained=./absent
model.pretrained=~absent
model.pretrained=a/b +model.width +model.dropout +model.config.x +model.attention
model.pretrained=model.file
model.pretrained=adapter
model.pretrained=both
model.pretrained=unnamed
model.pretrained=bare
model.pretrained=config_alone
model.pretrained=config_alone recipe.name=estimate
model.pretrained=pickled
model.pretrained=pt
model.pretrained=whole
model.pretrained=broken
model.pretrained=odd
"""


def model_folders() -> None:
    Path("model.file").write_text("x")
    files = {
        "adapter/adapter_config.json": '{"base_model_name_or_path": "c/d"}',
        "both/adapter_config.json": "{}",
        "both/model.safetensors": "",
        "both/config.json": "{}",
        "unnamed/adapter_config.json": '{"base_model_name_or_path": null}',
        "bare/other.json": "{}",
        "config_alone/config.json": "{}",
        "pickled/config.json": "{}",
        "pickled/pytorch_model.bin": "",
        "pt/config.json": "{}",
        "pt/model.pt": "",
        "whole/config.json": '{"num_hidden_layers": 2}',
        "whole/model.safetensors": "",
        "broken/config.json": "{",
        "broken/model.safetensors": "",
        "odd/config.json": json.dumps({"num_hidden_layers": 0, "text_config": {"n_layer": 2049}}),
        "odd/model.safetensors": "",
    }
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)


def test_the_refusals_of_model(data_regression):
    model_folders()
    found = table(MODEL, lambda cfg, given: heads(model.problems(cfg, given), 110), "model=bert_tiny")
    data_regression.check(known(found))


def test_what_config_json_may_count(data_regression):
    counts = {
        "num_hidden_layers": (0, 1, 2048, 2049, True, "9", 1.5),
        "n_layer": (0, 1),
        "n_layers": (0, 1),
        "encoder_layers": (-1, 0, 2048, 2049),
        "vision_feature_layer": (-2, 2048, 2049),
        "num_local_experts": (-1, 0, 65536, 65537),
        "num_labels": (0, 65536, 65537),
        "hidden_size": (-1, 10**9),
        "players": (-1,),
    }
    found = {f"{key}={value}": model.counts_problems({key: value}) for key, each in counts.items() for value in each}
    found["inside"] = model.counts_problems({"a": {"n_layer": 0, "b": {"num_experts": -1}}, "n_layers": 0})
    found["a list"] = model.counts_problems([{"n_layer": 0}])
    data_regression.check(known(found))


def test_weights_replace_the_sizes_of_the_menu(data_regression):
    found = {}
    for pretrained in ("null", "a/b"):
        cfg, _ = changed(f"model.pretrained={pretrained}", "model=bert_tiny")
        cfg.model.config = {"own": 1}
        assert model.resolve(cfg) == []
        values = {key: value for key, value in vars(cfg.model).items() if key != "facts"}
        found[pretrained] = values
        assert model.recorded(values) == values
    found["older"] = model.recorded({"name": "bert", "layers": 2, "pretrained": "a/b"})
    data_regression.check(known(found))


def test_odd_sizes_of_a_model(data_regression):
    lines = """
    model.width=64 model.feed_forward=128 model.vocab=512
    model.width=65 model.feed_forward=129 model.vocab=513
    model.width=68 model.feed_forward=128 model.vocab=50257
    model.width=64 model.feed_forward=132 model.vocab=30522
    model.width=65 model.vocab=50258
    model.width=65 model.pretrained=a/b
    """
    data_regression.check(known(table(lines, lambda cfg, _: model.warnings(cfg), "model=bert_tiny")))


def test_what_a_family_makes_of_the_sizes(data_regression):
    cfg, _ = changed("", "model=bert_tiny")
    sizes = vars(cfg.model) | {"config": None}
    families = ("bert", "distilbert", "modernbert", "gpt2", "llama", "mixtral", "qwen3_moe", "phi3")
    found = {family: model_families.values(family, sizes, 0.25) for family in families}
    found["more"] = model_families.values("llama", sizes | {"config": {"own": 1, "hidden_size": 5}, "heads": None}, 0.5)
    data_regression.check(known(found))


# --- requirements, save, task, tracker, train ------------------------------------------------------


def test_what_an_option_needs(data_regression, monkeypatch):
    monkeypatch.setattr(host, "has", lambda name: name == "present")
    monkeypatch.setattr(host, "version", {"old": "1.5", "new": "2.1", "early": "2.0.dev1"}.get)
    needs = {
        "nothing": Facts(),
        "a package": Facts(package="absent"),
        "a package that is there": Facts(package="present"),
        "another": Facts(package="absent", instead="optim=sgd"),
        "none to estimate": Facts(package="absent", estimated_without_package=True),
        "a version": Facts(requires=["old>=2"], instead="optim=sgd"),
        "the second version": Facts(requires=["new>=2", "old>=2"]),
        "versions that are there": Facts(requires=["new>=2", "old<2"]),
        "an early version": Facts(requires=["early>=2.0.dev0"]),
        "a version of nothing": Facts(requires=["absent>=1"]),
        "a GPU": Facts(needs_gpu="why", instead_on_cpu="optim=cpu", package="absent"),
        "a newer GPU": Facts(min_capability="9.1", instead="optim=older"),
        "this GPU": Facts(min_capability="9.0"),
        "an older GPU": Facts(min_capability="8.10"),
        "no estimate": Facts(not_estimated="why.", package="absent"),
    }
    own = host.Gpu("GPU-0", "NVIDIA Own", 2**30, (9, 0))
    found = {}
    for name, facts in needs.items():
        for recipe in ("trainer", "estimate"):
            for target in (Target("cpu", None), Target("cuda", own)):  # pyright: ignore[reportArgumentType]
                cfg, _ = changed(f"recipe.name={recipe}")
                cfg.optim.facts, cfg.target = facts, target
                found[f"{name}, {recipe}, {target.device}"] = requirements.problems(cfg, "optim")
                assert requirements.problems(cfg, "train") == []
    data_regression.check(known(found))


def test_the_rules_of_save(data_regression):
    lines = [
        f"save.max_shard_gb={size} save.final={final} adapter.name={adapter} save.merge={merge} adapter.bits={bits}"
        for size in ("null", "2.5")
        for final in ("true", "false")
        for adapter in ("none", "lora")
        for merge in ("true", "false")
        for bits in ("null", "4")
    ]
    lines += [
        f"save.merge=true save.final=true adapter.name=lora parallelism.name={name} parallelism.strategy={strategy}"
        for name in ("fsdp", "ddp", "fsdp_tp")
        for strategy in ("full_shard", "no_shard")
    ]
    lines += [
        f"model.pretrained={pretrained} data.name={data} recipe.name={recipe}"
        for pretrained in ("null", "a/b")
        for data in ("dummy", "text")
        for recipe in ("trainer", "estimate")
    ]

    def said(cfg, given):
        by_default = [save.final_by_default(cfg, in_sweep) for in_sweep in (False, True)]
        return [*heads(save.problems(cfg, given), 50), *heads(save.warnings(cfg)), by_default]

    found = table("\n".join(lines), said)
    data_regression.check(known({line: each for line, each in found.items() if each != [[False, False]]}))


def test_the_task_of_a_configuration_and_of_an_architecture(data_regression, monkeypatch):
    from transformers import BartConfig, BertConfig, GPT2Config, T5Config

    from legroom.third_party import transformers_models_private

    def is_decoder_only(config):  # without the import of the model's module
        return config.model_type == "gpt2"

    monkeypatch.setattr(transformers_models_private, "is_decoder_only", is_decoder_only)

    lines = [
        f"data.name={data} data.task={name} model.family={family} model.pretrained={pretrained}"
        for data in ("dummy", "source", "chat", "mrpc", "text")
        for name in ("null", "chat", "regression")
        for family in ("bert", "gpt2")
        for pretrained in ("null", "a/b")
    ]
    found = table("\n".join(lines), lambda cfg, _: [task.task(cfg), task.is_causal(cfg), task.has_conversations(cfg)])
    architectures = {
        BertConfig: ("BertForMaskedLM", "BertLMHeadModel", "BertForSequenceClassification", "BertForQuestionAnswering"),
        GPT2Config: ("GPT2LMHeadModel", "GPT2ForSequenceClassification", "GPT2ForQuestionAnswering"),
        T5Config: ("T5ForConditionalGeneration", "T5ForTokenClassification"),
        BartConfig: ("BartForConditionalGeneration", "BartForSequenceClassification", "BartForQuestionAnswering"),
    }
    cfg, _ = changed("data.name=text data.task=null model.pretrained=a/b")
    for kind, names in architectures.items():
        for saved in (None, *[[name] for name in names], ["Other", names[0]], ["OwnForCausalLM"]):
            found[f"{kind.__name__} {saved}"] = task.task_of(cfg, kind(architectures=saved))
    cfg, _ = changed("data.name=mrpc")
    found["the data decides"] = task.task_of(cfg, GPT2Config())
    data_regression.check(known(found))


def test_whether_a_tracker_sends_anything(data_regression, monkeypatch):
    found = {}
    for name in ("none", "local", "wandb", "mlflow"):
        for mode in (None, "disabled", "offline", "odd"):
            for variable, value in (
                ("WANDB_MODE", "disabled"),
                ("WANDB_MODE", "online"),
                ("WANDB_MODE", "odd"),
                ("WANDB_DISABLED", "true"),
                ("WANDB_DISABLED", "1"),
                ("WANDB_DISABLED", "0"),
            ):
                with monkeypatch.context() as patch:
                    patch.setenv(variable, value)
                    cfg, given = changed("tracker.project=mine")
                    cfg.tracker.name, cfg.tracker.mode = name, mode
                    said = [*heads(tracker.problems(cfg, given), 40), *heads(tracker.warnings(cfg), 40)]
                    found[f"{name} {mode} {variable}={value}"] = [tracker.sends(cfg), tracker.switched_off(cfg), *said]
    for project in ("", "a", "a" * 128, "a" * 129, "a/b", "a b", "a:b", "a%"):
        cfg, given = changed("tracker.name=wandb")
        cfg.tracker.mode, cfg.tracker.project = None, project
        found[f"project {len(project)} {project[:3]}"] = heads(tracker.problems(cfg, given), 20)
    data_regression.check(known(found))


def test_the_rules_of_train(data_regression):
    lines = [
        f"train.schedule={schedule} train.warmup_steps={warmup} optim.facts.needs_constant_schedule={own}"
        for schedule in ("constant", "linear", "constant_with_warmup")
        for warmup in (0, 1)
        for own in ("true", "false")
    ]
    lines += [f"train.schedule=polynomial train.learning_rate={r}" for r in ("null", "1.0e-7", "1.1e-7", "0.9e-7")]
    lines += ["train.schedule=linear train.learning_rate=0.5e-7"]
    lines += [f"train.max_steps={steps} {typed}" for steps in ("null", 3) for typed in ("+train.epochs=2", "")]
    found = table("\n".join(lines), lambda cfg, given: heads(train.problems(cfg, given)))
    rates = [
        f"model.pretrained={pretrained} adapter.name={adapter} adapter.learning_rate=0.5 model.learning_rate=0.25"
        for pretrained in ("null", "a/b")
        for adapter in ("none", "lora")
    ]

    def resolved(cfg, _):
        cfg.train.learning_rate = cfg.train.schedule = None
        first = [train.default_learning_rate(cfg), train.resolve(cfg), cfg.train.learning_rate, cfg.train.schedule]
        cfg.optim.facts.needs_constant_schedule, cfg.train.schedule = True, None
        train.resolve(cfg)
        return [*first, cfg.train.schedule, train.training_arguments(cfg)]

    found |= table("\n".join(rates), resolved)
    cfg, _ = changed("train.max_steps=null train.warmup_steps=5 train.learning_rate=0.125 train.schedule=cosine")
    found["resolved"] = [train.resolve(cfg), train.training_arguments(cfg)]
    found["a warm-up of 5 steps"] = {steps: train.warmup_warnings(cfg, steps) for steps in (4, 5, 6)}
    data_regression.check(known(found))
