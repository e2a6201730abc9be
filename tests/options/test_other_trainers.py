"""What is typed for another trainer becomes overrides, and what does not is named."""

from __future__ import annotations

import pytest
from conftest import compose

from legroom.errors import Refusal
from legroom.options import other_trainers

TRL = """trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name trl-lib/Capybara --learning_rate 2.0e-4 \\
    --num_train_epochs 1 --packing --per_device_train_batch_size=2 --gradient_accumulation_steps 8 \\
    --use_peft --lora_r 32 --lora_target_modules q_proj v_proj --report_to none --some_new_thing 3"""
AXOLOTL = """
base_model: NousResearch/Meta-Llama-3.1-8B
datasets: [{path: talks.jsonl, type: chat_template}]
adapter: qlora
load_in_4bit: true
sequence_len: 4096
lora_r: 32
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
bf16: auto
gradient_checkpointing: true
warmup_ratio: 0.1
rl: dpo
"""
LLAMA_FACTORY = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
finetuning_type: lora
lora_target: all
quantization_bit: 4
dataset: identity,alpaca_en_demo
cutoff_len: 2048
per_device_train_batch_size: 1
num_train_epochs: 3.0
deepspeed: examples/deepspeed/ds_z2_config.json
"""


@pytest.mark.parametrize(
    ("text", "trainer", "expected", "assumed"),
    [
        (
            TRL,
            "TRL",
            "model.pretrained=Qwen/Qwen2.5-0.5B data=hub data.path=trl-lib/Capybara train.learning_rate=0.0002 "
            "train.epochs=1 data.packing=true batch.per_device=2 accumulation.steps=8 adapter=lora adapter.rank=32 "
            "adapter.targets=[q_proj,v_proj] checkpointing=full precision=bf16 data.seq_len=1024",
            {
                "data.seq_len=1024",
                "checkpointing=full",
                "precision=bf16",
                "precision.base=fp32",
                "loss=chunked",
                "optim=adamw_fused",
                "adapter.alpha=32",
                "adapter.dropout=0.05",
            },
        ),
        (
            AXOLOTL,
            "axolotl",
            "model.pretrained=NousResearch/Meta-Llama-3.1-8B data=chat data.path=talks.jsonl adapter=qlora "
            "data.seq_len=4096 adapter.rank=32 batch.per_device=2 accumulation.steps=4 optim=adam8bit "
            "train.schedule=cosine precision=bf16 precision.weights=bf16 checkpointing=full train.epochs=1",
            {"train.epochs=1"},
        ),
        (
            LLAMA_FACTORY,
            "LLaMA-Factory",
            "model.pretrained=meta-llama/Meta-Llama-3-8B-Instruct adapter=qlora data.seq_len=2048 batch.per_device=1 "
            "train.epochs=3 parallelism=zero parallelism.stage=2 data=chat checkpointing=full",
            {
                "checkpointing=full",
                "optim=adamw_fused",
                "train.learning_rate=5.0e-5",
                "precision=bf16_pure",
                "precision.adapter=fp32",
                "adapter.rank=8",
                "adapter.alpha=16",
            },
        ),
    ],
    ids=["trl", "axolotl", "llama_factory"],
)
def test_settings_become_overrides(text, trainer, expected, assumed):
    reading = other_trainers.read(text)
    assert reading.trainer == trainer
    assert set(expected.split()) <= set(reading.overrides)
    assert set(reading.assumed) == assumed


@pytest.mark.parametrize(
    ("text", "unread", "left_out"),
    [
        (TRL, ["some_new_thing: 3"], []),
        (AXOLOTL, ["rl: dpo"], ["warmup_ratio"]),
        (LLAMA_FACTORY, ["dataset: identity,alpaca_en_demo"], []),
        ("base_model: a/b\noptimizer: something_new", ["optimizer: something_new"], []),
    ],
)
def test_nothing_is_dropped_without_a_word(text, unread, left_out):
    reading = other_trainers.read(text)
    assert reading.unread == unread
    assert reading.left_out == left_out


@pytest.mark.parametrize(
    ("text", "typed", "not_typed"),
    [
        ("trl sft --model_name_or_path a/b", ["precision=bf16", "optim=adamw_fused"], "precision.base"),
        ("trl sft --model_name_or_path a/b --bf16 false --dtype bfloat16", [], "precision"),
        (
            "trl sft --model_name_or_path a/b --use_peft --load_in_4bit",
            ["adapter=qlora", "adapter.double_quant=false", "precision.adapter=bf16", "precision.base=fp32"],
            "tracker",
        ),
        ("trl sft --model_name_or_path a/b --load_in_4bit --bf16 false", ["adapter=qlora"], "precision"),
        (
            "trl sft --model_name_or_path a/b --load_in_4bit --use_bnb_nested_quant",
            ["adapter=qlora", "adapter.double_quant=true"],
            "tracker",
        ),
        (
            "model_name_or_path: a/b\nstage: sft\nquantization_bit: 4\ndouble_quantization: false",
            ["adapter=qlora", "adapter.double_quant=false", "precision.adapter=fp32"],
            "tracker",
        ),
        ("base_model: a/b\nbf16: false", ["train.schedule=cosine"], "precision"),
        ("base_model: a/b\nadapter: lora\nload_in_8bit: true", ["adapter=qlora", "adapter.bits=8"], "adapter.rank"),
        ("model_name_or_path: a/b\ncutoff_len: 512", ["adapter=lora", "adapter.rank=8", "adapter.alpha=16"], "tracker"),
        ("model_name_or_path: a/b\nstage: sft\nlora_rank: 64", ["adapter.rank=64", "adapter.alpha=128"], "tracker"),
        ("model_name_or_path: a/b\nfinetuning_type: full\nlora_rank: 8", ["adapter=none"], "adapter.rank"),
        ("model_name_or_path: a/b\nfinetuning_type: freeze", ["checkpointing=full"], "adapter"),
        ("model_name_or_path: a/b\nstage: pt", ["data.packing=true"], "tracker"),
    ],
)
def test_defaults_hold_where_nothing_is_given(text, typed, not_typed):
    overrides = other_trainers.read(text).overrides
    assert set(typed) <= set(overrides)
    assert not [each for each in overrides if each.partition("=")[0].startswith(not_typed)]


@pytest.mark.parametrize("text", [TRL, AXOLOTL, LLAMA_FACTORY + "bf16: true"], ids=["trl", "axolotl", "llama_factory"])
def test_what_was_read_can_be_estimated(text):
    reading = other_trainers.read(text)
    taken = [text for text in reading.overrides if not text.startswith(("data.path", "data.task", "data="))]
    ranks = "parallelism.num_processes=2" if "parallelism=zero" in taken else "parallelism=single"
    assert not compose("recipe=estimate", "gpu=rtx4090_24gb", "data=chat", *taken, ranks).problems


@pytest.mark.parametrize("text", ["", "hello", "a: b", "[1, 2]", "x" * 70_000, 'trl sft --model "a', "a: [b"])
def test_other_texts_are_refused(text):
    with pytest.raises(Refusal, match="What was pasted"):
        other_trainers.read(text)
