"""What needs one GPU, in one call: the tests marked `gpu`, then trainings of six to thirty steps.

    python scripts/gpu_checks.py [--into docs/results] [--at-once 1] [--no-tests]

Trains the guide's model in both recipes with every precision and every optimizer, and a decoder with checkpointing,
chunked loss, kernels, adapters and more, and writes what CUDA counted beside what the memory ledger counted to
<into>/gpu_<device>.md and .jsonl. Jobs that run at once share the GPU: the table then has no times.
Exit code 1 when a test or a job fails or a job is refused; without a GPU it says so and exits with 2.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

from checkout import ROOT

from legroom import paths
from legroom.jobs import fork_client, launch, supervise
from legroom.machine import host
from legroom.options import compose, menus
from legroom.records import record, record_file, run_folder
from legroom.units import MIB

# The jobs' models: the guide's, batch 4 of 512 tokens, and a decoder.
GUIDE = ["model=bert_large", "data.samples=160", "train.max_steps=30"]
DECODER = ["model=smollm2_135m", "train.max_steps=6", "precision=bf16"]
ROWS = ["data.samples=64", "data.eval_samples=16"]  # of the decoder, unless it trains on a text
NEEDED = {
    "adapter=peft": ["adapter.peft={peft_type: OFT, oft_block_size: 32}"]
}  # what an option trains nothing without
SHORT = "train.max_steps=6"  # of jobs that run at once, whose times are not read
SHARED = ("samples/s", "step ms", "MFU", "device MiB", "context MiB")  # what other jobs on the same GPU change
HEADINGS = (
    "recipe",
    "job",
    "status",
    "samples/s",
    "step ms",
    "MFU",
    "ledger MiB",
    "allocated MiB",
    "ledger / allocated",
    "reserved MiB",
    "device MiB",
    "context MiB",
)


def jobs(folder: Path) -> list[list[str]]:
    """The guide's model with each precision, each optimizer, each mode with one process and compiled code; a decoder
    with the options of other menus. Each in both recipes. folder: for a text to train on."""
    folders = [paths.CONF]
    variants: list[list[str]] = [[]]
    variants += [[f"precision={name}"] for name in menus.options("precision", folders) if name != "fp32"]
    variants += [["precision=bf16", f"optim={name}"] for name in menus.options("optim", folders) if name != "adamw"]
    paged = ["optim=paged_adam8bit", "optim.in_backward=true", "train.max_grad_norm=0"]
    variants += [["precision=bf16", "compile=true"], ["precision=bf16", *paged]]
    variants += [
        ["precision=bf16", f"parallelism={mode}", "parallelism.num_processes=1"] for mode in ("dp", "ddp", "fsdp")
    ]
    variants += [["precision=fp16", "parallelism=fsdp", "parallelism.num_processes=1"]]
    variants += [["precision=bf16", "accumulation=x4", "batch.per_device=1", "checkpointing=full"]]
    made = [[*GUIDE, *variant] for variant in variants] + decoder_jobs(folder)
    return [[f"recipe={recipe}", *job] for job in made for recipe in ("trainer", "accelerate")]


def decoder_jobs(folder: Path) -> list[list[str]]:
    """The decoder with each option of four menus, and with some of their keys. folder: see `jobs`."""
    variants: list[list[str]] = [[]]
    for menu, plain in (("checkpointing", "none"), ("loss", "standard"), ("kernels", "none"), ("adapter", "none")):
        options = [f"{menu}={name}" for name in menus.options(menu, [paths.CONF]) if name != plain]
        variants += [[option, *NEEDED.get(option, ())] for option in options]
    variants += [["adapter=qlora", "adapter.bits=8"], ["adapter=lora", "adapter.dora=true", "checkpointing=full"]]
    variants += [["compile=true", "compile_regions=true"], ["model.attention=eager"], ["precision=fp8"]]
    variants += [["model=mixtral_tiny"], ["optim.in_backward=true", "train.max_grad_norm=0"]]
    variants += [["parallelism=fsdp", "parallelism.num_processes=1", "parallelism.cpu_offload=true"]]
    variants += [["parallelism=fsdp", "parallelism.num_processes=1", "adapter=qlora"]]
    text = folder / "readme.txt"
    text.write_text((ROOT / "README.md").read_text())
    packed = [*DECODER, "data=text", f"data.path={text}", "data.packing=true", "data.seq_len=512"]
    return [[*DECODER, *ROWS, *variant] for variant in variants] + [packed]


def composed(asked: list[list[str]]) -> tuple[list[tuple[list[str], record.Record]], list[str]]:
    """(words and record of each job to run, a line for each that is refused). Hydra composes one at a time."""
    ready, refused = [], []
    for words in asked:
        _, made, problems = compose.compose(paths.CONF, *words)
        if made is None or problems:
            refused.append(f"{' '.join(words)}: {' '.join(problems)}")
        else:
            ready.append((words, made))
    return ready, refused


def run_all(
    ready: list[tuple[list[str], record.Record]],
    fork_server: fork_client.ForkServer,
    lines: TextIO,
    scratch: Path,
    at_once: int = 1,
) -> list[record.Record]:
    """Run every job, `at_once` at a time. Each record is a line when its job ends. scratch: for the jobs' folders."""

    def one(index: int) -> record.Record:
        words, made = ready[index]
        folder = scratch / str(index)
        folder.mkdir()
        start = time.monotonic()
        outcome = supervise.run(launch.Job(made, folder), lambda *_: None, fork_server)
        text = f"{outcome.status:<8}{time.monotonic() - start:6.1f} s  {' '.join(words)}"
        if outcome.status == "failed":
            text += "\n" + (folder / run_folder.LOG_FILE).read_text()[-3000:]
        print(text, flush=True)
        lines.write(json.dumps(json.loads(record_file.to_json(outcome))) + "\n")
        lines.flush()
        return outcome

    if at_once == 1:  # in the main thread, which hears Ctrl-C
        return [one(index) for index in range(len(ready))]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, range(len(ready))))


def _figure(value: float | None, unit: float | None = MIB, decimals: int = 0) -> str:
    """A cell; empty where the machine has not given the figure."""
    return "" if value is None or not unit else f"{value / unit:.{decimals}f}"


def table(records: list[record.Record], at_once: int = 1) -> str:
    """Markdown: the speed, and the memory ledger's peak beside CUDA's. at_once: jobs that shared the GPU."""
    headings = [name for name in HEADINGS if at_once == 1 or name not in SHARED]
    rows = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    for outcome in records:
        speed, memory = outcome.speed, outcome.memory
        words = [word for word in outcome.overrides if not word.startswith("recipe=")]
        cells = [outcome.recipe, f"`{' '.join(words)}`", outcome.status]
        if outcome.status == "ok":
            figures = {
                "samples/s": f"{speed.samples_per_second:.2f}",
                "step ms": _figure(speed.step_seconds_median, 1 / 1000, 1),
                "MFU": f"{speed.mfu:.1%}" if speed.mfu is not None else "",
                "ledger MiB": _figure(memory.peak_tensor_bytes),
                "allocated MiB": _figure(memory.peak_allocated_bytes),
                "ledger / allocated": _figure(memory.peak_tensor_bytes, memory.peak_allocated_bytes, 3),
                "reserved MiB": _figure(memory.peak_reserved_bytes),
                "device MiB": _figure(memory.device_used_bytes),
                "context MiB": _figure(memory.context_bytes),
            }
            cells += [figures[name] for name in headings[3:]]
        rows.append("| " + " | ".join(cells + [""] * (len(headings) - len(cells))) + " |")
    return "\n".join(rows)


def page(gpu: host.Gpu, records: list[record.Record], refused: list[str], at_once: int = 1) -> str:
    """The table with a heading: the GPU, the versions of the libraries, what was refused."""
    shared = ""
    if at_once > 1:
        shared = f" {at_once} jobs at once shared the GPU: what they change for each other, is left out."
    versions = ", ".join(f"{name} {value}" for name, value in records[0].environment["versions"].items() if value)
    text = (
        f"# {gpu.name}: what CUDA counted, and what the ledger counted\n\n"
        f"Measured by `python scripts/gpu_checks.py` on {time.strftime('%Y-%m-%d')}, {gpu.memory_bytes / MIB:.0f} MiB, "
        f"compute capability {gpu.capability[0]}.{gpu.capability[1]}; {versions}.\n"
        f"The records stand beside this page.{shared}\n\n{table(records, at_once)}\n"
    )
    if refused:
        text += "\nRefused, and not run:\n" + "".join(f"\n- {line}" for line in refused) + "\n"
    return text


def run(target: Path, with_tests: bool, at_once: int = 1) -> int:
    """Run the tests that need a GPU and every job, and write gpu_<device>.md and .jsonl into `target`.

    Returns the exit code: 1 when a test or a job fails or a job is refused, 2 without a GPU.
    """
    if not host.gpus():
        print("There is no GPU that torch could use here; nothing was run.", file=sys.stderr)
        return 2
    gpu = host.gpus()[0]
    failed = 0
    if with_tests:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-rfs"]
        failed = subprocess.run(command, cwd=ROOT).returncode
    target.mkdir(parents=True, exist_ok=True)
    name = "gpu_" + gpu.name.lower().replace("nvidia", "").strip().replace(" ", "_")
    fork_server = fork_client.ForkServer()
    try:
        with open(target / f"{name}.jsonl", "w") as lines, tempfile.TemporaryDirectory() as scratch:
            asked = jobs(Path(scratch))
            if at_once > 1:
                asked = [[*(word for word in job if not word.startswith("train.max_steps=")), SHORT] for job in asked]
            ready, refused = composed(asked)
            print(*(f"refused: {line}" for line in refused), sep="\n", flush=True)
            records = run_all(ready, fork_server, lines, Path(scratch), at_once)
    finally:
        fork_server.close()
    if not records:
        print("Every job was refused; nothing was measured.", file=sys.stderr)
        return 1
    text = page(gpu, records, refused, at_once)
    (target / f"{name}.md").write_text(text)
    print(text)
    return 1 if failed or refused or any(outcome.status != "ok" for outcome in records) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "docs/results", help="folder for the tables")
    parser.add_argument("--no-tests", action="store_true", help="the tables alone")
    parser.add_argument("--at-once", type=int, default=1, help="jobs that share the GPU; more than one: no times")
    options = parser.parse_args()
    return run(options.into, not options.no_tests, options.at_once)


if __name__ == "__main__":
    sys.exit(main())
