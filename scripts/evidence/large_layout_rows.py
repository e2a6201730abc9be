"""Published runs of large layouts, as their sources state them, and the same set-ups in this project's words.

Every figure was read in the sources below. What a source leaves open is typed as its program had it at that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

# First word of a row's name -> where its figures are.
SOURCES = {
    "torchtitan": (
        "torchtitan, end of 2024",
        "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, commit b5bcd76c: H100 with 96 GB at 2.4 TB/s "
        "and 500 of 700 W, 400 Gb/s a GPU between machines. Memory is the most that was reserved on any GPU.",
    ),
    "async": (
        "torchtitan, June 2025",
        "pytorch/torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md, commit b5bcd76c: the same machines.",
    ),
    "trainy": (
        "torchtitan on H200",
        "pytorch/torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md, commit b5bcd76c: 400 Gb/s a GPU.",
    ),
    "llama3": (
        "Llama 3 405B",
        "The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3 and table 4: H100 of 700 W, 400 Gb/s a GPU; no "
        "checkpointing, weights whole between a forward and its backward pass.",
    ),
    "mpt": (
        "llm-foundry, 2023",
        "mosaicml/llm-foundry, scripts/train/benchmarking/README.md, commit 8c8dd48f, with the models of "
        "scripts/train/yamls/pretrain. A100: 1,600 Gb/s between machines. Of the H100s' network the page says nothing; "
        "3,200 Gb/s are assumed. Attention was a Triton kernel of 2023 (`attn_impl` at the commits that added the "
        "tables, 300cc5c5, b2a43a14 and 5e85bd62), whose rate is not known here: typed is flash attention 2. Its loss "
        "was one kernel that writes over the logits (`fused_crossentropy`), torch's keeps copies: so three runs do not "
        "fit here.",
    ),
    "nemo": (
        "NeMo AutoModel, 2025 and 2026",
        "NVIDIA-NeMo/Automodel, docs/performance-summary.mdx, commit 36044ad3, with the settings of "
        "examples/llm_benchmark: DGX H100, 400 Gb/s a GPU.",
    ),
}


@dataclass(frozen=True)
class Row:
    """A published run.

    name: of its record's folder; up to its first dot a key of SOURCES. gpus: of all machines. layout: as published.
    overrides: the same set-up, without the sizes of a model that no menu has, which `sizes` are: a config.json.
    tokens: a second, of one GPU. gib: reserved on a GPU. unlike: what of the run cannot be typed. Where the prediction
    therefore is of another time, timed is False.
    """

    name: str
    gpus: int
    layout: str
    overrides: str
    tokens: float
    gib: float | None = None
    sizes: dict = field(default_factory=dict)
    unlike: str = ""
    timed: bool = True

    @property
    def source(self) -> str:
        return self.name.split(".")[0]


def network(gpus: int, gb_per_second: int) -> str:
    """The overrides of machines of 8 GPUs, and the rate of one in each direction."""
    if gpus <= 8:
        return ""
    return f"gpu.machines={gpus // 8} gpu.machine_link_gb_per_second={gb_per_second} "


# --- torchtitan ------------------------------------------------------------------------------------------

# Its weights are in fp32, gathered in bf16, and gradients are added up in fp32: precision=bf16.
GRAND_TETON = (
    "gpu=h100_80gb gpu.memory_bytes=102005473280 gpu.bandwidth_gb_per_second=2400 gpu.power_limit=0.714 precision=bf16 "
    "model.attention=flash_attention_2 "
)
COMPILED = "compiled, which goes with neither selective checkpointing nor context parallelism here: typed uncompiled"
FLOAT8 = "its products in float8, whose time is not known here: typed in bf16"
RING = "its context parallelism hands keys round a ring: typed is Ulysses"


def _torchtitan() -> Iterator[Row]:
    selective = "model=llama_8b parallelism=fsdp data.seq_len=8192 batch.per_device=2 checkpointing=selective_half"
    published = {8: ((5762, 82.4), (6667, 77.0), (8532, 76.8)), 128: ((5605, 67.0), (6514, 62.0), (8380, 61.8))}
    for gpus, (eager, compiled, float8) in published.items():
        name, layout = f"torchtitan.8b-{gpus}", f"8B, FSDP {gpus}, 2 rows of 8,192, selective checkpointing"
        overrides = f"{GRAND_TETON}{network(gpus, 400)}{selective} parallelism.num_processes={gpus}"
        yield Row(name, gpus, layout, overrides, *eager)
        yield Row(f"{name}-compiled", gpus, f"{layout}, compiled", overrides, *compiled, unlike=COMPILED)
        yield Row(
            f"{name}-float8",
            gpus,
            f"{layout}, compiled, float8",
            overrides,
            *float8,
            unlike=f"{FLOAT8}; {COMPILED}",
            timed=False,
        )
    for context, tokens, gib in ((1, 3890, 83.9), (2, 2540, 84.2), (4, 1071, 84.0), (8, 548, 84.5)):
        length = 32768 * context
        overrides = (
            f"{GRAND_TETON}model=llama_8b model.positions=262144 parallelism=fsdp parallelism.num_processes=8 "
            f"data.seq_len={length} batch.per_device=1 checkpointing=full"
        )
        unlike = FLOAT8
        if context == 1:
            overrides += " compile=true"
        else:
            overrides += f" parallelism.context={context}"
            unlike = f"{FLOAT8}; {RING}; {COMPILED}"
        layout = f"8B, FSDP {8 // context}, CP {context}, 1 row of {length:,}, checkpointing, compiled, float8"
        yield Row(f"torchtitan.8b-context-{context}", 8, layout, overrides, tokens, gib, unlike=unlike, timed=False)
    yield Row(
        "trainy.8b-32",
        32,
        "8B, FSDP 32, 2 rows of 8,192, selective checkpointing, compiled, float8",
        f"gpu=h200_141gb {network(32, 400)}precision=bf16 model.attention=flash_attention_2 {selective} "
        "parallelism.num_processes=32",
        10938,
        47.96,
        unlike=f"{FLOAT8}; its loss is compiled as well, which keeps no logits in fp32; {COMPILED}",
        timed=False,
    )


def _meshes() -> Iterator[Row]:
    """Tensor parallelism of 8, a machine, with sequence parallelism and split logits."""
    tensor = "parallelism=mesh parallelism.tensor_size=8 data.seq_len=8192"
    yield Row(
        "async.8b",
        64,
        "8B, FSDP 8, TP 8, 12 rows of 8,192, selective checkpointing, compiled",
        f"{GRAND_TETON}{network(64, 400)}model=llama_8b {tensor} parallelism.shard_size=8 batch.per_device=12 "
        "checkpointing=selective_half",
        4378,
        unlike=COMPILED,
    )
    big = f"{GRAND_TETON}{network(256, 400)}model=llama_70b {tensor} parallelism.shard_size=32 batch.per_device=16 "
    big += "checkpointing=full"
    layout = "70B, FSDP 32, TP 8, 16 rows of 8,192, checkpointing, compiled"
    yield Row("async.70b", 256, layout, big, 597.3, unlike="compiled: typed uncompiled")
    unlike = f"{FLOAT8}; compiled: typed uncompiled"
    yield Row("torchtitan.70b", 256, f"{layout}, float8", big, 829, 71.9, unlike=unlike, timed=False)
    for name, schedule, tokens, gib in (
        ("1F1B", "1f1b", 100, 82.5),
        ("interleaved 1F1B", "interleaved parallelism.chunks=2", 128, 72.7),
    ):
        yield Row(  # as many micro-batches as stages, as its build_pipeline_schedule has by default
            f"torchtitan.405b-{schedule.split()[0]}",
            512,
            f"405B, FSDP 8, TP 8, PP 8, {name}, 4 rows of 8,192 x 8, checkpointing, compiled, float8",
            f"{GRAND_TETON}{network(512, 400)}model=llama_405b {tensor} parallelism.shard_size=8 parallelism.stages=8 "
            f"parallelism.schedule={schedule} parallelism.strategy=shard_grad_op batch.per_device=4 "
            "accumulation.steps=8 checkpointing=full",
            tokens,
            gib,
            unlike=f"{unlike}; asynchronous TP",
            timed=False,
        )
    # 430 TFLOP/s of 2.54 TFLOP a token: 6 for each parameter, and 6 x layers x width x tokens for causal attention.
    yield Row(
        "llama3.405b-8192",
        8192,
        "FSDP 64, TP 8, PP 16, 1 row of 8,192 x 32: 430 TFLOP/s",
        f"gpu=h100_80gb {network(8192, 400)}precision=bf16 model.attention=flash_attention_2 model=llama_405b {tensor} "
        "parallelism.shard_size=64 parallelism.stages=16 parallelism.strategy=shard_grad_op batch.per_device=1 "
        "accumulation.steps=32",
        170,
        unlike="its schedule of more chunks, and fewer layers in the first and the last stage: typed is 1F1B",
    )


# --- llm-foundry -----------------------------------------------------------------------------------------

MPT_SIZES = {  # width, heads, layers
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}
H100, A100, A100_40 = "h100_80gb", "a100_80gb", "a100_40gb"
# GPU, model, tokens of a row, GPUs, rows of a micro-batch, micro-batches, checkpointing, tokens/s of a GPU
MPT_RUNS = (
    (H100, "70b", 2048, 512, 8, 1, True, 1007),
    (H100, "30b", 2048, 512, 8, 1, True, 2115),
    (H100, "13b", 2048, 512, 16, 1, True, 4952),
    (H100, "13b", 2048, 128, 16, 1, True, 5080),
    (H100, "13b", 2048, 8, 2, 1, False, 4792),
    (H100, "13b", 32768, 8, 1, 3, True, 1976),
    (H100, "7b", 2048, 512, 6, 1, False, 9670),
    (H100, "7b", 2048, 128, 6, 1, False, 10475),
    (H100, "7b", 2048, 8, 6, 1, False, 10643),
    (H100, "7b", 8192, 8, 8, 2, True, 6935),
    (H100, "3b", 2048, 512, 8, 1, False, 21664),
    (H100, "1b", 2048, 512, 12, 1, False, 39837),
    (H100, "1b", 2048, 8, 14, 1, False, 45455),
    (A100, "7b", 2048, 8, 6, 2, False, 4641),
    (A100_40, "70b", 2048, 128, 4, 1, True, 376),
    (A100_40, "30b", 2048, 128, 6, 1, True, 865),
    (A100_40, "13b", 2048, 64, 16, 1, True, 1976),
    (A100_40, "7b", 2048, 128, 18, 1, True, 3623),
    (A100_40, "1b", 2048, 128, 10, 1, False, 18647),
)
LONG = "at this length most of the difference may be its attention's kernel"
SHARD_GRAD_OP = {("3b", 512), ("1b", 512)}  # the others: FULL_SHARD
GRADIENTS_IN_BF16 = {(A100_40, model) for model in MPT_SIZES}  # 'bf16 PURE'; else fp32
NETWORKS = {H100: 400, A100: 200, A100_40: 200}


def mpt_config(model: str, length: int) -> dict:
    """MPT as a GPT-2 of its sizes, with learned positions and GELU in one kernel. GPT-2 has biases, MPT none."""
    width, heads, layers = MPT_SIZES[model]
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "n_inner": 4 * width,
        "vocab_size": 50368,
        "n_positions": length,
        "activation_function": "gelu",
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": True,
    }


def _mpt() -> Iterator[Row]:
    for gpu, model, length, gpus, batch, steps, checkpointing, tokens in MPT_RUNS:
        overrides = (
            f"gpu={gpu} {network(gpus, NETWORKS[gpu])}precision=bf16 model.attention=flash_attention_2 "
            f"parallelism=fsdp parallelism.num_processes={gpus} data.seq_len={length} batch.per_device={batch}"
        )
        layout = f"{model.upper()}, FSDP {gpus}, {batch} rows of {length:,}"
        if steps > 1:
            overrides += f" accumulation.steps={steps}"
            layout += f" x {steps}"
        if checkpointing:
            overrides += " checkpointing=full"
            layout += ", checkpointing"
        if (gpu, model) in GRADIENTS_IN_BF16:
            overrides += " precision.reduction=bf16"
        if (model, gpus) in SHARD_GRAD_OP:
            overrides += " parallelism.strategy=shard_grad_op"
            layout += ", gathered until the backward pass"
        name = f"mpt.{gpu.removesuffix('gb')}-{model}-{length}-{gpus}"
        unlike = LONG if length > 2048 else ""
        sizes = mpt_config(model, length)
        yield Row(name, gpus, f"{gpu[:4].upper()}: {layout}", overrides, tokens, sizes=sizes, unlike=unlike)


# --- NeMo AutoModel --------------------------------------------------------------------------------------


def _nemo() -> Iterator[Row]:
    dgx = "gpu=h100_80gb precision=bf16_pure checkpointing=full optim=adamw_fused "
    compiled = "compiled, with Transformer Engine's kernels: typed uncompiled, with transformers'"
    yield Row(
        "nemo.llama-70b",
        64,
        "Llama 3 70B, FSDP 32, CP 2, 1 row of 8,192 x 4, checkpointing",
        f"{dgx}{network(64, 400)}model=llama_70b parallelism=fsdp parallelism.num_processes=64 parallelism.context=2 "
        "data.seq_len=8192 batch.per_device=1 accumulation.steps=4",
        866.77,
        unlike=f"{compiled}; {RING}",
    )
    lora = "adapter=lora adapter.rank=16 parallelism=fsdp data.seq_len=4096 batch.per_device=1"
    for name, model, gpus, steps, tokens in (
        ("llama-70b", "llama_70b", 8, 4, 1091.85),
        ("qwen2.5-32b", "qwen2_5_32b", 16, 2, 2072.89),
    ):
        yield Row(
            f"nemo.{name}-lora",
            gpus,
            f"{name}, LoRA, FSDP {gpus // 2}, TP 2, 2 rows of 4,096 x {steps}, checkpointing",
            f"{dgx}{network(gpus, 400)}model={model} {lora} parallelism.num_processes={gpus} "
            f"accumulation.steps={steps}",
            tokens,
            unlike=f"{compiled}; adapters and TP do not go together here: typed is FSDP of all with one row each",
        )


ROWS = [*_torchtitan(), *_meshes(), *_mpt(), *_nemo()]


# A published run, what it had, and what keeps it from being typed.
UNTYPED = [
    [
        "torchtitan, 405B on 512 H100, TP 8, PP 8, FSDP and CP 8, rows of 32,768 to 262,144, float8",
        "76 to 16 tokens/s of a GPU; 75.3 to 84.9 GiB",
        "context parallelism by a ring within a pipeline: not tried",
    ],
    [
        "Llama 3 405B on 16,384 H100 with CP 16, rows of 131,072",
        "380 TFLOP/s of a GPU",
        "its context parallelism gathers keys: not tried",
    ],
    [
        "DeepSeek-V3 on 2,048 H800 (arXiv 2412.19437)",
        "180,000 GPU hours for 10^12 tokens",
        "experts within a pipeline, DualPipe, products in float8",
    ],
]
