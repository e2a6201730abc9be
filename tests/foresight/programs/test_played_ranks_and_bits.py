"""Scripts of several ranks, and one of quantised weights, against what `recipe=estimate` predicts of the same step."""

from __future__ import annotations

import os

import pytest
from played_scripts import GPU, ROWS, play
from test_played_scripts import TRAINER

DDP = "bf16=True, optim='adamw_torch', ddp_find_unused_parameters=False, ddp_bucket_cap_mb=25"
LOOP = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

sizes = dict(vocab_size={vocab}, n_positions={positions}, n_embd={width}, n_layer={layers}, n_head={heads})
none = dict(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
model = GPT2LMHeadModel(GPT2Config(n_inner={feed_forward}, **sizes, **none)).cuda()
{model}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
while True:
    ids = (torch.arange(128) % 50).expand(32, -1).contiguous().cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
SHARDED = """
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
dist.init_process_group("nccl")
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in [*model.transformer.h, model]:
    fully_shard(block, mp_policy=policy)
torch.cuda.empty_cache()
"""
QLORA = (
    """
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, Trainer, TrainingArguments
)

"""
    + ROWS.format(length=128)
    + """
LlamaConfig(
    vocab_size={vocab}, hidden_size={width}, intermediate_size={feed_forward}, num_hidden_layers={layers},
    num_attention_heads={heads}, num_key_value_heads={kv_heads}, max_position_embeddings=128, dtype="bfloat16",
    tie_word_embeddings={tied},
).save_pretrained("base")
bits = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
)
model = AutoModelForCausalLM.from_pretrained("base", quantization_config=bits, device_map="auto", use_cache=False)
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
arguments = TrainingArguments(
    "out", per_device_train_batch_size=64, report_to="none", weight_decay=0.01, bf16=True, optim="adamw_torch"
)
Trainer(model=model, args=arguments, train_dataset=Rows()).train()
"""
)
SIZES = ("vocab", "positions", "width", "layers", "heads", "feed_forward")


@pytest.fixture(autouse=True)
def left_alone(monkeypatch):
    """What recipes and scripts leave in the environment of their process."""
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        monkeypatch.delenv(name)
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


def recipe_of(predicted, model, *overrides):
    sizes = ["model.layers=12", "model.positions=128", "data.seq_len=128", "data.samples=256"]
    same = ["precision=bf16", "optim=adamw", "eval.enabled=false", f"gpu={GPU}"]
    return predicted(f"model={model}", *same, *sizes, *overrides)


def equal(found, recipe):
    memory = recipe.memory
    assert found.reserved_bytes == pytest.approx(memory.peak_reserved_bytes, rel=0.01)
    assert found.allocated_bytes == pytest.approx(memory.peak_allocated_bytes, rel=0.01)
    assert found.tensor_bytes == pytest.approx(memory.peak_tensor_bytes, rel=0.002)
    assert found.parts["optimizer"] == memory.optimizer_bytes > 0
    assert found.parts["parameters"] == memory.parameters_bytes
    assert found.device_used_bytes == pytest.approx(memory.device_used_bytes, rel=0.01)
    assert found.step_seconds == pytest.approx(recipe.speed.step_seconds_median, rel=0.02)


@pytest.mark.slow_for("fsdp")
@pytest.mark.parametrize(
    "text, model, ranks, words",
    [
        (TRAINER, "", 4, "parallelism=ddp parallelism.gradient_as_bucket_view=false"),
        (LOOP, SHARDED, 4, "parallelism=fsdp"),
        (LOOP, "", 1, "parallelism=single"),
    ],
    ids=["ddp", "fsdp", "loop"],
)
def test_rank_0_of_some_is_what_the_recipe_predicts(predicted, tmp_path, text, model, ranks, words):
    settings = ["batch.per_device=32"] + [f"parallelism.num_processes={ranks}"] * (ranks > 1)
    recipe = recipe_of(predicted, "gpt2_tiny", *settings, *words.split())
    values = {name: recipe.config["model"][name] for name in SIZES}
    equal(play(tmp_path, text.format(length=128, arguments=DDP, model=model, **values), ranks=ranks), recipe)


@pytest.mark.slow
def test_qlora_is_what_the_recipe_predicts(predicted, tmp_path):
    from legroom.third_party.bitsandbytes_private import own_code_tables

    recipe = recipe_of(predicted, "llama_tiny", "adapter=qlora", "batch.per_device=64")
    with own_code_tables():  # which bitsandbytes keeps for the process, on the first device that asks
        equal(play(tmp_path, QLORA.format(**recipe.config["model"])), recipe)


def test_a_mesh_starts_the_process_groups_that_it_needs(tmp_path):
    """torch's own module of meshes has the functions by name, and waited for ranks that are nowhere."""
    text = """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "model"))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False)).cuda()
    parallelize_module(model, mesh["model"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    found = play(tmp_path, text, ranks=4)
    assert (found.parts["parameters"], found.parts["optimizer"]) == (64 * 64, 2 * 64 * 64)
