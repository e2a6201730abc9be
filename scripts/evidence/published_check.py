"""Published fine-tunings, repeated on the emulated GPU with the versions that they were published with.

    python scripts/evidence/published_check.py PYTHON CONFIGURATIONS

PYTHON: of an environment with torch 2.8.0 (a CUDA build; NVIDIA's libraries are not needed), transformers 5.12.1, peft
0.18.0 and accelerate 1.12.0. CONFIGURATIONS: a folder with qwen35_0_8b/config.json and qwen35_2b/config.json, of
Qwen/Qwen3.5-0.8B and 2B. Writes docs/results/published_check.md.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from checkout import ROOT  # isort: skip (it puts tests/tools on the path)
import oracle
from markdown_table import markdown

from legroom.estimator.cards import gpu_of
from legroom.script_check import process

PAGE = ROOT / "docs" / "results" / "published_check.md"
STEP = Path(__file__).with_name("published_check_step.py")
GIB = 2**30
# NVIDIA RTX PRO 5000 72GB (Blackwell): its data sheet; what is not here is as of the RTX PRO 6000.
CARD = {
    "name": "rtx_pro_6000_96gb",
    "device_name": "NVIDIA RTX PRO 5000 72GB Blackwell",
    "memory_bytes": 76_000_000_000,
    "sm_count": 110,
}
HEAD = """# Published runs on the emulated GPU

FanBB2333/FakeGPU (commit 7d5cf83, docs/llm-sft-memory-estimation.md) publishes `torch.cuda.max_memory_allocated()` of
fine-tunings of Qwen3.5 on an NVIDIA RTX PRO 5000 72GB: bf16, SDPA, one row, AdamW with `foreach=False`, the first step.
They are repeated here with the same versions on the [emulated GPU](../emulated_gpu.md), without any of NVIDIA's
libraries, by `python scripts/evidence/published_check.py`.
"""


class Run(NamedTuple):
    """A published run. gib: what it allocated at most."""

    model: str
    method: str
    tokens: int
    checkpointing: str
    gib: float


SMALL, LARGE = "qwen35_0_8b", "qwen35_2b"
PLAIN, CHECKPOINTED = "plain", "checkpointed"
RUNS = [
    Run(SMALL, "full", 128, PLAIN, 6.687),
    Run(SMALL, "full", 128, CHECKPOINTED, 6.679),
    Run(SMALL, "lora", 16, PLAIN, 1.756),
    Run(SMALL, "lora", 128, PLAIN, 2.696),
    Run(SMALL, "lora", 128, CHECKPOINTED, 1.876),
    Run(LARGE, "full", 16, PLAIN, 15.939),
    Run(LARGE, "lora", 16, PLAIN, 3.868),
    Run(LARGE, "lora", 128, PLAIN, 4.959),
    Run(LARGE, "lora", 128, CHECKPOINTED, 3.974),
]


def allocated(run: Run, python: Path, configurations: Path) -> int:
    """What a run allocates at most on the emulated device. Raises CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        environment = oracle.device_environment(python, gpu_of(CARD), 1, folder)
        environment["PYTHONPATH"] = f"{process.INSIDE}:{environment['PYTHONPATH']}".rstrip(":")
        arguments = [str(configurations / run.model), run.method, str(run.tokens), run.checkpointing]
        command = [str(python), str(STEP), *arguments]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1])


def page(measured: list[tuple[Run, int]], versions: str) -> str:
    """The page with its table."""
    lines, errors = [], []
    for run, allocated_bytes in measured:
        error = allocated_bytes / GIB / run.gib - 1
        errors.append(abs(error))
        checkpointed = "yes" if run.checkpointing == CHECKPOINTED else "no"
        figures = [f"{run.gib:.3f}", f"{allocated_bytes / GIB:.3f}", f"{error:+.2%}"]
        lines.append([run.model, run.method, str(run.tokens), checkpointed, *figures])
    names = ["model", "method", "tokens", "checkpointing", "published, GiB", "emulated, GiB", "apart"]
    made = f"Made on {datetime.date.today()} with {versions}."
    total = f"{len(errors)} runs: median {statistics.median(errors):.2%}, at most {max(errors):.2%}."
    return "\n".join([HEAD, made, "", markdown(names, lines), "", total, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("python", type=Path)
    parser.add_argument("configurations", type=Path)
    asked = parser.parse_args()
    measured = []
    for run in RUNS:
        measured.append((run, allocated(run, asked.python, asked.configurations)))
        print(*run, f"{measured[-1][1] / GIB:.3f}", flush=True)
    list_versions = "from importlib.metadata import version as v; print(*(f'{n} {v(n)}' for n in {names}), sep=', ')"
    code = list_versions.replace("{names}", "('torch', 'transformers', 'peft', 'accelerate')")
    versions = subprocess.run([asked.python, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    PAGE.write_text(page(measured, versions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
