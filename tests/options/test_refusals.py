"""What is typed, and what a refusal has to say: the reason, or what to type instead.

`ranks` stands for parallelism.num_processes. A line with gpu= is an estimate, where nothing has to be there.
"""

from __future__ import annotations

import pytest
from conftest import compose, small

PARALLELISM = [
    ("gpu=l4_24gb parallelism=ddp ranks=0", "parallelism.num_processes=0 is too small: it must be at least 1"),
    (
        "gpu=l4_24gb parallelism=dp ranks=2 precision=bf16",
        "Choose parallelism=ddp, or precision=fp32, tf32 or bf16_pure",
    ),
    ("parallelism=dp ranks=2 parallelism.context=2", "it belongs to parallelism=ddp"),
    ("parallelism=ddp ranks=2 parallelism.context=3", "2 ranks cannot be put into groups of parallelism.context=3"),
    (
        "parallelism=ddp ranks=2 parallelism.context=2 data.seq_len=33",
        "data.seq_len=33 cannot be shared out over parallelism.context=2 ranks",
    ),
    (
        "parallelism=ddp ranks=2 parallelism.context=2 model.heads=3 model.width=33",
        "model.heads=3 cannot be split over parallelism.context=2 ranks",
    ),
    (
        "parallelism=ddp ranks=2 parallelism.static_graph=true accumulation.steps=2",
        "parallelism.static_graph=true does not go with accumulation",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp ranks=2 parallelism.shard_size=2",
        "parallelism.shard_size belongs to the hybrid strategies, not to full_shard",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp ranks=2 parallelism.strategy=hybrid_shard parallelism.shard_size=2",
        "Type another shard_size, or parallelism.strategy=full_shard",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp ranks=4 parallelism.strategy=hybrid_shard",
        "Type another shard_size, or parallelism.strategy=full_shard",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp ranks=2 parallelism.wrap_min_parameters=1000",
        "Type parallelism.wrap=size, or leave it out",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp ranks=2 parallelism.strategy=no_shard parallelism.wrap=layer",
        "parallelism.strategy=no_shard keeps a whole model on every rank",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp ranks=2 parallelism.experts=2",
        "parallelism.experts=2: model=bert_tiny has no experts",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp ranks=2 eval.precision=bf16",
        "eval.precision casts the whole model, which parallelism=fsdp has sharded",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp_tp ranks=2 parallelism.tensor_size=2"
        " model=llama_tiny parallelism.strategy=no_shard",
        "Type full_shard or shard_grad_op",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp_tp ranks=3 parallelism.tensor_size=2 model=llama_tiny",
        "3 ranks cannot be put into groups of parallelism.tensor_size=2",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp_tp ranks=3 parallelism.tensor_size=3 model=llama_tiny",
        "model.heads=4 cannot be split over parallelism.tensor_size=3 ranks",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp_tp ranks=2 parallelism.tensor_size=2 model=llama_tiny parallelism.split=experts",
        "parallelism.split=experts: model=llama_tiny has no experts",
    ),
    (
        "gpu=l4_24gb parallelism=fsdp_tp ranks=2 parallelism.tensor_size=2 model=gpt2_tiny",
        "Choose another model, or parallelism=fsdp",
    ),
    ("gpu=l4_24gb parallelism=zero ranks=2 precision=fp16", "Choose precision=bf16, or parallelism=fsdp"),
    ("gpu=l4_24gb parallelism=zero ranks=2 precision=bf16_pure", "Choose precision=bf16, or parallelism=fsdp"),
    (
        "gpu=l4_24gb parallelism=zero ranks=2 parallelism.stage=2 parallelism.offload=all",
        "Type parallelism.stage=3, or parallelism.offload=optimizer",
    ),
    (
        "gpu=l4_24gb parallelism=zero ranks=2 parallelism.stage=1 parallelism.live_parameters=1000",
        "Type parallelism.stage=3, or leave it out",
    ),
    ("gpu=l4_24gb parallelism=zero ranks=2 eval.precision=bf16", "eval.precision casts the whole model"),
    ("gpu=l4_24gb parallelism=zero ranks=2 optim=muon", "Choose optim=adamw, or parallelism=fsdp"),
    ("gpu=l4_24gb parallelism=zero ranks=2 optim=schedule_free", "Choose optim=adamw, or parallelism=ddp"),
    ("gpu=l4_24gb parallelism=zero ranks=2 save.every_steps=1", "save.every_steps, save.best and resume"),
    (
        "gpu=l4_24gb parallelism=pipeline parallelism.stages=2 ranks=3"
        " model.layers=2 model=gpt2_tiny accumulation.steps=2",
        "3 ranks cannot be put into groups of parallelism.stages=2",
    ),
    (
        "gpu=l4_24gb parallelism=pipeline parallelism.stages=2 ranks=2 model=gpt2_tiny"
        " model.layers=4 accumulation.steps=3 parallelism.schedule=interleaved",
        "Type accumulation.steps=4, or parallelism.schedule=gpipe",
    ),
    (
        "gpu=l4_24gb parallelism=pipeline parallelism.stages=2 ranks=2"
        " model=gpt2_tiny model.layers=4 accumulation.steps=2 parallelism.chunks=2",
        "parallelism.chunks is for parallelism.schedule=interleaved, not for 1f1b",
    ),
]
BATCH = [
    ("batch.effective=9 batch.per_device=2", "batch.effective=9 is not a multiple of batch.per_device=2"),
    ("batch.effective=8 batch.per_device=2 accumulation.steps=3", "batch.effective=8 derives the accumulation"),
    (
        "batch.effective=8 batch.per_device=2 accumulation=x4",
        "batch.effective=8 derives the accumulation, and accumulation=x4 sets it too",
    ),
    (
        "batch.effective=6 batch.per_device=2 parallelism=ddp ranks=2",
        "batch.effective=6 is not a multiple of batch.per_device=2 x 2 devices",
    ),
    ("accumulation=auto batch.effective=8", "Choose accumulation=x4, or leave it out"),
    ("gpu=l4_24gb accumulation=auto", "Type the number of samples, as in batch.effective=64"),
    ("gpu=l4_24gb accumulation=auto batch.effective=8 parallelism=ddp ranks=2", "Choose batch.per_device yourself"),
    ("batch.per_device=9", "Type batch.per_device=8 or less, or give more data"),
]
LEVERS = [
    (
        "adapter=lora adapter.targets=[]",
        "Type adapter.targets=all-linear, or a list as adapter.targets=[q_proj,v_proj]",
    ),
    (
        "optim=adamw optim.in_backward=true accumulation.steps=2 train.max_grad_norm=0",
        "optim.in_backward=true updates the weights in every backward pass",
    ),
    (
        "optim=adamw optim.in_backward=true train.max_grad_norm=1",
        "Type train.max_grad_norm=0, or leave optim.in_backward out",
    ),
    ("gpu=l4_24gb precision=fp8 model=gpt2_tiny compile=true", "precision=fp8 is for linear layers"),
    ("precision=fp16", "Choose precision=bf16"),
    ("gpu=v100_16gb precision=bf16", "Choose precision=fp16"),
    ("model.attention=flash_attention_2 precision=bf16", "Choose model.attention=sdpa"),
    ("gpu=t4_16gb model.attention=flash_attention_2 precision=bf16", "needs compute capability 8.0"),
    ("gpu=l4_24gb model.attention=flash_attention_2 precision=fp32", "Choose precision=bf16, or model.attention=sdpa"),
    (
        "gpu=h100_80gb model.attention=flash_attention_3 precision=bf16 model.dropout=0.1",
        "Type model.dropout=0, or model.attention=sdpa",
    ),
    ("model.attention=flex_attention", "Choose model.attention=sdpa"),
    ("gpu=l4_24gb model.attention=flex_attention model.dropout=0.1", "Type model.dropout=0, or model.attention=sdpa"),
    ("compile_mode=max-autotune", "Did you mean max-autotune-no-cudagraphs?"),
    ("gpu=l4_24gb kernels=liger model=gpt2_tiny", "Choose model=llama_tiny or another llama, or kernels=none"),
    (
        "loss=chunked data.task=classification model=bert_tiny",
        "Choose model=llama_tiny or another decoder, or loss=standard",
    ),
    ("loss.rows=4", "loss.rows is not used by loss=standard; it belongs to loss=chunked"),
]
MODEL = [
    (
        "model.experts=4 model.experts_per_token=2 model.width=68 model=mixtral_tiny",
        "model.width=68: the grouped product of the experts needs multiples of 8",
    ),
    ("model=mixtral_tiny model.experts_per_token=5", "model.experts_per_token=5 is more than model.experts=4"),
    ("model.width=63 model.heads=4", "model.width=63 is not a multiple of model.heads=4"),
    ("model.width=12 model.heads=4 model=llama_tiny", "model.width=12 over model.heads=4 gives heads of odd size"),
    ("model.heads=4 model.kv_heads=3 model=llama_tiny", "model.heads=4 is not a multiple of model.kv_heads=3"),
    ("data.seq_len=65 model.positions=64", "Type data.seq_len=64, or raise model.positions"),
    ("data=source model=bert_tiny", "Choose model=gpt2_tiny or another decoder, or type data.task=masked_lm"),
    ("data.task=classification model.classes=1", "model.classes=1: a classification needs at least 2"),
]
DATA = [
    ("eval.enabled=false eval.every_steps=2", "eval.every_steps=2 is not supported with eval.enabled=false"),
    ("eval.window=4 eval.stride=5 data=source model=llama_tiny", "Type eval.stride=4 or less"),
    ("eval.window=64 data=source model=llama_tiny data.seq_len=16", "Type eval.stride=16 or less"),
    ("eval.every_steps=2 eval.precision=bf16", "eval.every_steps=2 is not supported with eval.precision=bf16"),
    ("data=source data.task=classification model=llama_tiny", "data.task=classification with data=source"),
    ("data=text", "data=text needs data.path="),
    ("data=chat", "data=chat needs data.path="),
    ("data=text data.path=a.csv data.encoding=utf-9", "Type utf-8, latin-1 or another one"),
    ("data=text data.path=a.jsonl data.mask_share=0.1", "data.mask_share=0.1: for data.task=masked_lm alone"),
    ("data=text data.path=a.jsonl data.whole_words=true", "data.whole_words=True: for data.task=masked_lm alone"),
    (
        "data=text data.path=a.jsonl data.group_by_length=true data.task=masked_lm",
        "data.group_by_length=true: the rows of data=text are blocks of",
    ),
    ("data=text data.path=a.jsonl data.pair_column=b data.task=masked_lm", "it belongs to data=hub"),
    ("data=dummy data.samples=null", "Type data.samples=512"),
    ("data=source model=llama_tiny model.vocab=256", "Type model.vocab=512"),
]
REST = [
    (
        "gpu=l4_24gb parallelism=fsdp ranks=16 parallelism.strategy=hybrid_shard"
        " parallelism.shard_size=3 gpu.machines=2 gpu.machine_link_gb_per_second=50",
        "Type parallelism.shard_size=8, or another number that divides it",
    ),
    ("gpu=l4_24gb", "Add recipe=estimate, or leave gpu= out"),
    ("gpu=l4_24gb gpu.machines=2", "Type parallelism=ddp or parallelism=fsdp"),
    ("gpu=l4_24gb gpu.machines=2 parallelism=ddp ranks=4", "Add gpu.machine_link_gb_per_second="),
    (
        "gpu=l4_24gb gpu.machines=2 parallelism=ddp ranks=5 gpu.machine_link_gb_per_second=50",
        "Type parallelism.num_processes=6, or another multiple",
    ),
    ("gpu=l4_24gb gpu.machine_link_gb_per_second=50", "Add gpu.machines=2, or leave it out"),
    ("estimate.margin=0.1", "estimate.margin belongs to recipe=estimate and to accumulation=auto"),
    ("estimate.explain=true", "estimate.explain belongs to recipe=estimate"),
    ("save.merge=true save.final=true", "save.merge=true adds an adapter to the weights"),
    ("save.max_shard_gb=2.5 save.final=false", "Type save.final=true too"),
    ("train.schedule=constant train.warmup_steps=1", "Choose train.schedule=constant_with_warmup"),
    ("train.schedule=polynomial train.learning_rate=1e-8", "Choose train.schedule=linear"),
    ("tracker=wandb tracker.mode=odd", "tracker.mode=odd is not one of online"),
    ("tracker=wandb tracker.project=a/b", "tracker.project=a/b cannot be a project's name"),
    ("resume_allow=[data]", "resume_allow is about what a resumed training goes on with"),
    ("resume_allow=[zzzz] resume=latest", "What may differ is of [data,model,template,tokenizer,learning_rate]"),
    ("launch.timeout_seconds=0", "launch.timeout_seconds and launch.memory_limit_gib must be above 0"),
    ("save.every_steps=1 save.keep=0", "save.keep=0 is too small: it must be at least 1"),
]
# What is next to some of them, and right.
ACCEPTED = [
    "parallelism=ddp ranks=2 parallelism.context=2",
    "gpu=l4_24gb parallelism=fsdp ranks=4 parallelism.strategy=hybrid_shard parallelism.shard_size=2",
    "gpu=l4_24gb parallelism=fsdp ranks=2 parallelism.experts=2 model=mixtral_tiny",
    "gpu=l4_24gb parallelism=fsdp_tp ranks=4 parallelism.tensor_size=2 model=llama_tiny",
    "gpu=l4_24gb parallelism=zero ranks=2 parallelism.stage=3 parallelism.offload=all",
    "gpu=l4_24gb parallelism=pipeline ranks=2 parallelism.stages=2 model=gpt2_tiny model.layers=2 accumulation.steps=2",
    "gpu=l4_24gb gpu.machines=2 gpu.machine_link_gb_per_second=50 parallelism=ddp ranks=4",
    "batch.effective=8 batch.per_device=2",
    "optim=adamw optim.in_backward=true train.max_grad_norm=0",
    "data.seq_len=64 model.positions=64",
    "model.experts=4 model.experts_per_token=4 model=mixtral_tiny",
    "batch.per_device=8",
]
# What `accelerate launch` sets, and what the recipe is asked to type.
FSDP, ZERO = {"ACCELERATE_USE_FSDP": "true"}, {"ACCELERATE_USE_DEEPSPEED": "true"}
LAUNCHED = [
    ("parallelism=ddp", FSDP, "Type parallelism=fsdp"),
    ("parallelism=ddp", ZERO, "Type parallelism=zero"),
    ("parallelism=fsdp", ZERO, "Type parallelism=zero"),
    ("parallelism=ddp", {"ACCELERATE_USE_MEGATRON_LM": "true"}, "Take megatron_lm out"),
    ("parallelism=fsdp", {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}, "Type parallelism=fsdp_tp"),
    ("precision=fp32", {"ACCELERATE_MIXED_PRECISION": "bf16"}, "Type precision=bf16"),
    ("accumulation.steps=2", {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3"}, "Type accumulation.steps=3"),
    ("compile=false", {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "Type compile=true"),
    ("parallelism=fsdp", FSDP | {"FSDP_SHARDING_STRATEGY": "2"}, "Type parallelism.strategy=shard_grad_op"),
    ("parallelism=fsdp", FSDP | {"FSDP_SHARDING_STRATEGY": "NO_SHARD"}, "Type parallelism.strategy=no_shard"),
    ("parallelism=fsdp", FSDP | {"FSDP_RESHARD_AFTER_FORWARD": "false"}, "Type parallelism.strategy=shard_grad_op"),
    ("parallelism=fsdp", FSDP | {"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"}, "Type parallelism.wrap=size"),
    ("parallelism=fsdp", FSDP | {"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "Type checkpointing=full"),
    ("parallelism=zero", ZERO | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "Type parallelism.stage=3"),
    ("parallelism=zero", ZERO | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "file.json"}, "is not read"),
]
AGREED = [
    ("precision=bf16", {"ACCELERATE_MIXED_PRECISION": "bf16"}),
    ("precision=fp32", {"ACCELERATE_MIXED_PRECISION": "no"}),
    ("accumulation.steps=2", {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}),
    ("accumulation.steps=2", {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1"}),  # a launcher's default
    ("parallelism=fsdp", FSDP | {"FSDP_SHARDING_STRATEGY": "FULL_SHARD"}),
    ("parallelism=zero", ZERO | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}),
]


def problems(line: str) -> list[str]:
    """What a command with these overrides is refused for, on a machine without a GPU."""
    overrides = line.replace("ranks=", "parallelism.num_processes=").split()
    if len(overrides) > 1 and line.startswith("gpu="):
        overrides += ["recipe=estimate", "device=auto"]
    return compose(*small(*overrides)).problems


@pytest.mark.parametrize(("line", "answer"), [*PARALLELISM, *BATCH, *LEVERS, *MODEL, *DATA, *REST])
def test_refused(line, answer):
    assert any(answer in problem for problem in problems(line)), problems(line)


@pytest.mark.parametrize("line", ACCEPTED)
def test_accepted(line):
    assert problems(line) == []


@pytest.mark.parametrize(("line", "environment", "answer"), LAUNCHED)
def test_a_launcher_that_asks_for_something_else(monkeypatch, line, environment, answer):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert any("the launcher" in problem and answer in problem for problem in problems(line)), problems(line)


@pytest.mark.parametrize(("line", "environment"), AGREED)
def test_a_launcher_that_asks_for_the_same(monkeypatch, line, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not [problem for problem in problems(line) if "the launcher" in problem]
