"""The published runs that `published_check.py` repeats: where their figures stand, and what runs them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkout import ROOT

GIB = 2**30
RESERVED, ALLOCATED, HELD = "reserved", "allocated", "held"
RTX_FP32 = ROOT / "docs" / "reference" / "published_rtx_fp32.csv"


@dataclass(frozen=True)
class Run:
    """A published run.

    gpu: an option of the menu gpu, or a card's own figures. arguments: of the set's script. published_bytes: by figure.
    overrides: what `recipe=estimate` is told beside the GPU; empty where it cannot be typed.
    """

    name: str
    gpu: str | Mapping[str, Any]
    arguments: tuple[str, ...]
    published_bytes: dict[str, int]
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Set:
    """Runs of one source, with one set of versions.

    script: beside this file. figures: what is compared. versions: of the libraries that the runs were published with.
    runs: from the folder that is given on the command line. explained: why a run is apart, by its name.
    """

    title: str
    head: str
    script: str
    figures: tuple[str, ...]
    versions: dict[str, str]
    runs: Callable[[Path], list[Run]]
    explained: dict[str, str] = field(default_factory=dict)


# --- FakeGPU's runs ----------------------------------------------------------------------------------

# NVIDIA RTX PRO 5000 72GB (Blackwell): its data sheet; what is not here is as of the RTX PRO 6000.
RTX_PRO_5000 = {
    "name": "rtx_pro_6000_96gb",
    "device_name": "NVIDIA RTX PRO 5000 72GB Blackwell",
    "memory_bytes": 76_000_000_000,
    "sm_count": 110,
}
SMALL, LARGE = "qwen35_0_8b", "qwen35_2b"
PLAIN, CHECKPOINTED = "plain", "checkpointed"
QWEN_GIB = {
    (SMALL, "full", 128, PLAIN): 6.687,
    (SMALL, "full", 128, CHECKPOINTED): 6.679,
    (SMALL, "lora", 16, PLAIN): 1.756,
    (SMALL, "lora", 128, PLAIN): 2.696,
    (SMALL, "lora", 128, CHECKPOINTED): 1.876,
    (LARGE, "full", 16, PLAIN): 15.939,
    (LARGE, "lora", 16, PLAIN): 3.868,
    (LARGE, "lora", 128, PLAIN): 4.959,
    (LARGE, "lora", 128, CHECKPOINTED): 3.974,
}


def qwen_runs(configurations: Path) -> list[Run]:
    """configurations: a folder with qwen35_0_8b/config.json and qwen35_2b/config.json, of Qwen/Qwen3.5-0.8B and 2B."""
    runs = []
    for (model, method, tokens, checkpointing), gib in QWEN_GIB.items():
        name = f"{model} {method}, {tokens} tokens"
        if checkpointing == CHECKPOINTED:
            name += ", checkpointing"
        arguments = (str(configurations / model), method, str(tokens), checkpointing)
        runs.append(Run(name, RTX_PRO_5000, arguments, {ALLOCATED: round(gib * GIB)}))
    return runs


# --- xMem's runs -------------------------------------------------------------------------------------

RTX_CARDS = {"NVIDIA GeForce RTX 3060": "rtx3060_12gb", "NVIDIA GeForce RTX 4060": "rtx4060_8gb"}
DROPPED_BEFORE_FORWARD = "0"
LOGITS = "about one block as large as the logits, {} MiB. Which one is used again depends on what else is allocated"
XMEM_OPTIMIZERS = {"Adam": "optim=adamw", "AdamW": "optim=adamw", "SGD": "optim=sgd"}
CEREBRAS = ("model=gpt2", "model.layers=10", "model.dropout=0", "precision=fp32")  # Cerebras-GPT-111M, but for its GELU
GRADIENTS_DROPPED = ("before the forward pass", "before the backward pass", "after the step")


def xmem_runs(_: Path) -> list[Run]:
    """One run for each configuration; where a job was published several times, its median."""
    measured: dict[tuple[str, ...], list[int]] = {}
    for row in csv.DictReader(RTX_FP32.open()):
        mode = str(int(row["zero_grad_mode"]))
        tokens = str(int(float(row["seq_len"])))
        job = (row["gpu"], row["model"], row["batch"], tokens, row["optimizer"], mode)
        measured.setdefault(job, []).append(int(row["measured_peak_bytes"]))
    runs = []
    for (card, model, batch, tokens, optimizer, mode), peaks in measured.items():
        dropped = GRADIENTS_DROPPED[int(mode)]
        short, board = model.rpartition("/")[2], card.rpartition(" ")[2]
        name = f"{short}, batch {batch}, {optimizer}, gradients dropped {dropped}, RTX {board}"
        peak = sorted(peaks)[len(peaks) // 2]
        arguments = (model, batch, tokens, optimizer, mode)
        overrides: tuple[str, ...] = ()
        if "Cerebras" in model and mode == DROPPED_BEFORE_FORWARD:
            optim = XMEM_OPTIMIZERS[optimizer]
            overrides = (*CEREBRAS, f"batch.per_device={batch}", f"data.seq_len={tokens}", optim)
        figures = {RESERVED: peak}
        runs.append(Run(name, RTX_CARDS[card], arguments, figures, overrides))
    return runs


# --- PEFT's comparison of its methods ------------------------------------------------------------------

PEFT_VERSIONS = {"torch": "2.13.0", "transformers": "5.13.1", "peft": "0.19.2.dev0"}
PEFT_COMMIT = "d787f51"
FIRST_TOKENS = 100  # of a first step, which makes the optimizer's states
LONGEST_TOKENS = 700  # of the longest of the 20,000 rows: read off the reserved memory of one run, lora rank32
MEAN_TOKENS = 216  # of a batch: 4,178,051 tokens in 20,000 rows, and what four rows of similar length are padded by
NOT_REPEATED = ("adamss", "boft", "shira")  # see the set's head
MODEL_FOLDER = "llama_3_2_3b"  # beside the results, with config.json of meta-llama/Llama-3.2-3B


def peft_runs(folder: Path) -> list[Run]:
    """folder: with the published results (results/*.json), and llama_3_2_3b/config.json.

    Left out are runs with other versions, one that needs the tokenizer, and those that repeat another run with another
    learning rate. One run of each method comes first.
    """
    runs: dict[str, Run] = {}
    for path in sorted((folder / "results").glob("*.json")):
        result = json.loads(path.read_text())
        installed = result["meta_info"]["package_info"]
        versions = {name: installed[f"{name}-version"].partition("+")[0] for name in PEFT_VERSIONS}
        training = dict(result["run_info"]["train_config"])
        if versions != PEFT_VERSIONS or not installed["peft-commit-hash"].startswith(PEFT_COMMIT):
            continue
        if training["init_kv_cache_prefix"] is not None:
            continue
        del training["optimizer_kwargs"]
        adapter = dict(result["run_info"]["peft_config"] or {})
        adapter["target_modules"] = sorted(adapter.get("target_modules") or ())  # a set, in any order
        settings = json.dumps([training, adapter], sort_keys=True)
        method, _, details = path.stem.partition("--llama-3.2-3B-")
        if method in NOT_REPEATED:
            continue
        figures = {RESERVED: result["train_info"]["accelerator_memory_max"], HELD: _mean_held(result)}
        lengths = [str(tokens) for tokens in (FIRST_TOKENS, LONGEST_TOKENS, MEAN_TOKENS)]
        arguments = (str(path), str(folder / MODEL_FOLDER), *lengths)
        overrides = peft_overrides(result["run_info"]["peft_config"])
        runs.setdefault(settings, Run(f"{method} {details}", "l40s_48gb", arguments, figures, overrides))
    first_of = {run.name.partition(" ")[0]: run for run in reversed(runs.values())}
    return sorted(runs.values(), key=lambda run: run is not first_of[run.name.partition(" ")[0]])


PEFT_STEP = ("model=llama_3b", "precision=bf16_pure", "batch.per_device=4", f"data.seq_len={LONGEST_TOKENS}")
LORA_KEYS = {"r": "rank", "lora_alpha": "alpha", "use_dora": "dora", "use_rslora": "rslora"}
LORA_VARIANTS = ("use_bdlora", "velora_config", "monteclora_config")  # settings without a key


def peft_overrides(adapter: dict[str, Any] | None) -> tuple[str, ...]:
    """The same run for `recipe=estimate`: full fine-tuning and LoRA; empty for other methods."""
    if adapter is None:
        return PEFT_STEP
    is_plain = adapter["peft_type"] == "LORA" and not any(adapter[name] for name in LORA_VARIANTS)
    if not is_plain or adapter["init_lora_weights"] is not True:
        return ()
    keys = [f"adapter.{key}={str(adapter[name]).lower()}" for name, key in LORA_KEYS.items()]
    targets = f"adapter.targets=[{','.join(sorted(adapter['target_modules']))}]"
    return (*PEFT_STEP, "precision.adapter=fp32", "adapter=lora", *keys, targets)


def _mean_held(result: dict[str, Any]) -> int:
    """What was allocated after a step, on the average over the training."""
    averages = [part["mem allocated avg"] for part in result["train_info"]["metrics"] if "mem allocated avg" in part]
    return round(sum(averages) / len(averages))


# --- fms-acceleration's benchmarks ---------------------------------------------------------------------

FMS_BYTES = {  # mem_peak_torch_mem_alloc_in_bytes of one GPU, by method and rows of 4,096 tokens
    ("full", 4): 35_134_836_736,
    ("full", 8): 47_059_390_976,
    ("lora", 4): 20_193_463_808,
    ("lora", 8): 33_176_473_088,
    ("prepared", 4): 18_174_161_920,
    ("prepared", 8): 34_177_070_080,
    ("qlora", 4): 15_151_677_952,
    ("qlora", 8): 28_134_687_232,
}


POWERLM = (  # its sizes, in keys of a model of the same family
    "model=granite3_2b",
    "model.width=2304",
    "model.heads=36",
    "model.kv_heads=36",
    "model.feed_forward=9216",
    "model.vocab=49152",
    "model.positions=4096",
)
FMS_METHODS = {
    "full": ("precision=bf16_pure",),
    "lora": ("precision=bf16", "adapter=lora"),
    "prepared": ("precision=bf16", "precision.base=fp32", "precision.adapter=bf16", "adapter=qlora"),
    "qlora": ("precision=bf16", "adapter=qlora"),
}
FMS_ADAPTER = ("adapter.rank=16", "adapter.dropout=0.1", "adapter.targets=[q_proj,k_proj,v_proj,o_proj]")


def fms_runs(_: Path) -> list[Run]:
    runs = []
    for (method, batch), peak in FMS_BYTES.items():
        arguments = ("ibm/PowerLM-3b", method, str(batch), "4096")
        overrides = (*POWERLM, *FMS_METHODS[method], "checkpointing=full")
        overrides += (f"batch.per_device={batch}", "data.seq_len=4096")
        if method != "full":
            overrides += FMS_ADAPTER
        runs.append(Run(f"PowerLM-3b {method}, batch {batch}", "a100_80gb", arguments, {ALLOCATED: peak}, overrides))
    return runs


SETS = {
    "qwen": Set(
        "FakeGPU's fine-tunings of Qwen3.5",
        """FanBB2333/FakeGPU (commit 7d5cf83, docs/llm-sft-memory-estimation.md) publishes
`torch.cuda.max_memory_allocated()` of fine-tunings of Qwen3.5 on an NVIDIA RTX PRO 5000 72GB: bf16, SDPA,
one row, AdamW with `foreach=False`, the first step.""",
        "published_check_qwen.py",
        (ALLOCATED,),
        {"torch": "2.8.0", "transformers": "5.12.1", "peft": "0.18.0", "accelerate": "1.12.0"},
        qwen_runs,
    ),
    "peft": Set(
        "PEFT's comparison of its methods",
        """huggingface/peft (commit 5d602fd, method_comparison/MetaMathQA/results) publishes a training of Llama-3.2-3B
by each of its methods on an NVIDIA L40S: weights in bf16, adapters in fp32, four rows, AdamW, 5,000 steps
on MetaMathQA. peft is that of commit d787f51, as published. `reserved` is torch's largest reserved memory
of a run, `held` what was allocated after a step, on the average over the run. Emulated are the loss before
the training, a first step, a step on the longest batch and one on a batch of mean length.

The rows are not at hand. All runs saw the same ones in the same order, so that one number is missing for the first
figure, the length of the longest batch: with 700 tokens the run `lora rank32` reserves what was published, and all
others were run with that. The mean follows from the published number of tokens. The batches are padded, because
attention with a mask takes more memory. Left out: `adamss`, which clusters rows of the weights; `boft`, which
builds a CUDA extension; `shira`, which counts the entries of a random mask on the device.

The estimates are of this repository's own step on rows of 700 tokens. It gives causal models no mask, since they never
see padding on the right, and so takes less with an adapter. For the full fine-tuning it reserves more, probably because
the published program empties torch's cache every ten steps.""",
        "published_check_peft.py",
        (RESERVED, HELD),
        PEFT_VERSIONS,
        peft_runs,
        {
            "frod": "it coalesces sparse matrices. How many entries are left is a number that only a device counts; "
            "the emulated one leaves none",
            "prefixtuning": "probably its evaluation, which is not repeated: it generates for 50 rows, each behind 200 "
            "virtual tokens. The published run with 50 virtual tokens reserves 1.27 GiB less, of which the keys and "
            "values of a training step explain 0.26 at most",
        },
    ),
    "xmem": Set(
        "xMem's trainings in fp32",
        """The artifact of xMem (Middleware 2025, DOI 10.1145/3721462.3770773; docs/reference/README.md) has NVML's
device memory of trainings on an RTX 3060 and a 4060, largest minus first sample.""",
        "published_check_xmem.py",
        (RESERVED,),
        {"torch": "2.6.0", "transformers": "4.51.3"},
        xmem_runs,
        {
            "gpt-neo-125M, batch 12, Adam,": LOGITS.format("295"),
            "gpt-neo-125M, batch 25, AdamW": LOGITS.format("613"),
            "T5-small, batch 10, SGD": "not known; without it T5-small is within 1.1 %",
            "Cerebras-GPT-111M, batch 10": "the published figure does not fit its neighbours: with AdamW, batches of "
            "16 and 30 took 4,486 and 7,204 MiB, so 10 would take 3,321, and 4,088 are published; with SGD, 30 and 45 "
            "took 6,470 and 9,454, so 10 would take 2,491, and 3,020 are published",
        },
    ),
    "fms": Set(
        "fms-acceleration's benchmarks",
        """foundation-model-stack/fms-acceleration (scripts/benchmarks/refs/a100_80gb_granite.csv, commit 426a4a5, with
the versions of requirements_granite.txt) publishes torch's largest allocated memory on an A100 80 GB:
weights in bf16 under autocast, checkpointing, AdamW, rows of 4,096 tokens. `prepared`: QLoRA as TRL
prepares it; `qlora`: without its casts. The published runs had flash-attn 2.6.3; these have the flash
kernels of torch.""",
        "published_check_fms.py",
        (ALLOCATED,),
        {"torch": "2.4.1", "transformers": "4.45.0", "peft": "0.12.0", "bitsandbytes": "0.43.3"},
        fms_runs,
    ),
}
