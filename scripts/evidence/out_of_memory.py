"""Published reports of memory that ran out, and what an estimate of the same set-up says: writes a table.

    python scripts/evidence/out_of_memory.py [--records outputs/out_of_memory] [--into docs/results]

Each report is typed as its text gives it, without having been tried before; what it does not say is a default of the
program that it is about, and stands in the table. Records are kept, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkout import ROOT

from markdown_table import markdown

from legroom.units import size

COMMON = "recipe=estimate data.samples=512 estimate.hint_seconds=0"
LORA_QV = "adapter=lora adapter.targets=[q_proj,v_proj] adapter.rank=8"


@dataclass(frozen=True)
class Report:
    """source: an issue. happened: where memory ran out, as the report says. overrides: the same set-up. said: what of
    it is assumed, or why the estimate has another answer."""

    source: str
    happened: str
    overrides: str
    said: str = ""


REPORTS = [
    Report(
        "axolotl-ai-cloud/axolotl#2412",
        "GPU, backward pass of the second step",
        "gpu=h100_80gb model=smollm2_135m model.layers=24 model.width=2048 model.heads=32 model.kv_heads=32 "
        "model.feed_forward=8192 model.positions=16384 data.seq_len=16384 batch.per_device=1 optim=adam8bit "
        "precision=bf16 data.samples=8",
        "weights in fp32 under autocast (random_init). What stays free is less than one more copy of the logits in "
        "fp32 (3 GiB) and of its gradient, which transformers' loss may have made at that time: not verified",
    ),
    Report(
        "meta-pytorch/torchtune#1871",
        "host, 500 GB",
        "gpu=rtx4090_24gb model=llama_70b parallelism=fsdp parallelism.num_processes=8 parallelism.cpu_offload=true "
        "checkpointing=full precision=bf16_pure data.seq_len=1024 batch.per_device=2 gpu.host_memory_gib=465",
        "torchtune's default of 2 rows; full weights in bf16",
    ),
    Report(
        "JIA-Lab-research/LongLoRA#66",
        "host, 800 GB, with DeepSpeed's stage 2; stage 3 ran",
        "gpu=a100_80gb model=llama2_70b parallelism=zero parallelism.stage=2 parallelism.num_processes=8 "
        "checkpointing=full precision=bf16 precision.weights=bf16 data.seq_len=4096 batch.per_device=1 "
        "gpu.host_memory_gib=745",
        "rows of 4,096 in place of 16,384",
    ),
    Report(
        "Lightning-AI/litgpt#781",
        "GPU, training",
        f"gpu=a100_40gb model=mistral_7b {LORA_QV} precision=bf16_pure data.seq_len=1300 batch.per_device=4",
        "the longest row of Alpaca: 1,300 tokens",
    ),
    Report(
        "tatsu-lab/stanford_alpaca#220",
        "GPU, backward pass of the first step",
        "gpu=a100_80gb model=llama2_7b precision=bf16 data.seq_len=512 batch.per_device=4",
        "Trainer's bf16 over weights in fp32, 4 rows",
    ),
    Report(
        "meta-llama/llama-cookbook#413",
        "GPU, training",
        "gpu=a100_80gb model=llama2_7b precision=fp32 data.seq_len=4096 batch.per_device=4",
        "its defaults: fp32, 4 packed rows of 4,096",
    ),
    Report(
        "Alpha-VLLM/LLaMA2-Accessory#26",
        "GPU, at any batch",
        "gpu=a100_80gb model=llama2_13b parallelism=fsdp parallelism.num_processes=2 precision=bf16 "
        "checkpointing=full data.seq_len=512 batch.per_device=1",
        "tensor parallelism of 2 ranks as FSDP's",
    ),
    Report(
        "tloen/alpaca-lora#385",
        "GPU, first step",
        "gpu=a100_80gb model=llama2_70b model.kv_heads=64 model.feed_forward=22016 adapter=qlora "
        "adapter.bits=8 adapter.targets=[q_proj,v_proj] adapter.rank=8 precision=fp16 data.seq_len=256 "
        "batch.per_device=4",
        "LLaMA 65B; 4 rows of 256, as in its README",
    ),
    Report(
        "hiyouga/LlamaFactory#257",
        "GPU, loading",
        f"gpu=a100_80gb model=llama2_70b {LORA_QV} parallelism=ddp parallelism.num_processes=8 precision=bf16 "
        "data.seq_len=1024 batch.per_device=4",
        "its defaults: rows of 1,024, 4 of them",
    ),
    Report(
        "abacaj/fine-tune-mistral#3",
        "GPU, backward pass",
        "gpu=rtx3090_24gb model=mistral_7b precision=bf16_pure data.seq_len=2048 batch.per_device=1 checkpointing=full",
        "rows of 2,048",
    ),
    Report(
        "huggingface/transformers#23386",
        "GPU, final save with FSDP",
        "gpu=v100_32gb model=llama2_7b parallelism=fsdp parallelism.num_processes=8 precision=fp16 data.seq_len=512 "
        "batch.per_device=1 save.final=true",
        "the program gathered the whole fp32 model on the GPU of rank 0; here one weight at a time is gathered, and "
        "the whole in the host's memory",
    ),
    Report(
        "lm-sys/FastChat#256",
        "GPU, final save with FSDP",
        "gpu=a100_80gb model=llama2_13b parallelism=fsdp parallelism.num_processes=4 precision=bf16 data.seq_len=2048 "
        "batch.per_device=4 checkpointing=full save.final=true",
        "as above",
    ),
    Report(
        "unslothai/unsloth#1667",
        "GPU, merging an adapter of QLoRA",
        "gpu=h200_141gb model=llama_70b adapter=qlora precision=bf16 checkpointing=full data.seq_len=2048 "
        "batch.per_device=2 save.final=true save.merge=true",
        "the program merged on the GPU, beside the quantised model; here layer by layer, into the host's memory",
    ),
]


def verdict(report: Report, folder: Path) -> dict[str, Any]:
    """The record of an estimate, which is made unless there is one."""
    file = folder / "result.json"
    if not file.is_file():
        command = [sys.executable, str(ROOT / "train.py"), *COMMON.split(), *report.overrides.split()]
        with open(folder.with_suffix(".log"), "w") as log:
            subprocess.run([*command, f"hydra.run.dir={folder}"], stdout=log, stderr=log)
    return json.loads(file.read_text())


def first_lacking(record: dict[str, Any]) -> str:
    """The first phase that lacks room: on the host, where a model is built before it goes to a GPU, or on the GPU."""
    estimate, memory = record["estimate"], record["memory"]
    if estimate["verdict"] == "fits":
        return ""
    for phase in memory["phases"]:
        if memory["host_memory_bytes"] and (phase["host_bytes"] or 0) > memory["host_memory_bytes"]:
            return f"host, {phase['phase']}"
        if (phase["device_bytes"] or 0) > estimate["capacity_bytes"]:
            return f"GPU, {phase['phase']}"
    return "GPU, step"


def line(report: Report, record: dict[str, Any]) -> list[str]:
    """A row of the table."""
    estimate = record["estimate"]
    memory = record["memory"]
    repository, _, number = report.source.partition("#")
    source = f"[{repository} {number}](https://github.com/{repository}/issues/{number})"
    if estimate is None:
        return [source, report.happened, f"{record['status']}: {record['error']['message']}", "", report.said]
    answer = estimate["verdict"]
    lacking = first_lacking(record)
    if lacking:
        answer += f": {lacking}"
    needs = f"{size(memory['device_used_bytes'])}; {size(memory['host_needed_bytes'])}"
    return [source, report.happened, answer, needs, report.said]


HEAD = """# Memory that ran out, as others have reported it

Thirteen reports of out-of-memory, chosen for saying which model, card and settings they are about, typed as they stand,
and the first phase that the estimate says lacks room. 'Needed' is of one GPU in the step, and of the host in the phase
that needs most. Written by `python scripts/evidence/out_of_memory.py`, which has each command.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=ROOT / "outputs" / "out_of_memory")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "results")
    arguments = parser.parse_args()
    arguments.records.mkdir(parents=True, exist_ok=True)
    lines = []
    for report in REPORTS:
        name = report.source.replace("/", "-").replace("#", "-")
        lines.append(line(report, verdict(report, arguments.records.resolve() / name)))
        print(" | ".join(lines[-1]), flush=True)
    headings = ["report", "where memory ran out", "the estimate", "needed: GPU; host", "assumed, or why it differs"]
    table = markdown(headings, lines)
    right = sum(row[2].startswith("does not fit") for row in lines)
    summary = f"{right} of {len(lines)} do not fit; the last column explains the others."
    (arguments.into / "out_of_memory.md").write_text(f"{HEAD}\n{summary}\n\n{table}\n")


if __name__ == "__main__":
    main()
