"""Everything that needs a GPU, in one call of under ten minutes: correctness first, then the tables.

    python scripts/gpu_checks.py [--into docs/results] [--at-once 1] [--no-tests]

Runs the tests marked `gpu`, then the guide's model in both recipes with every precision and every
optimizer, and a decoder with every other lever, and writes what CUDA counted beside what the memory ledger counted to
<into>/gpu_<device>.md and .jsonl. Jobs that run at once share the GPU: the table then has no times.
Exit code 1 when a test or a job fails; without a GPU it says so and exits with 2.
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

from checkout import ROOT

from legroom import paths
from legroom.jobs import fork_client, launch, supervise
from legroom.machine import host
from legroom.options import compose, menus
from legroom.records import record, record_file, run_folder
from legroom.units import MIB

JOB = ["model=bert_large", "data.samples=160", "train.max_steps=30"]  # the guide's model, batch 4, 512 tokens
DECODER = ["model=smollm2_135m", "data.samples=64", "train.max_steps=6", "precision=bf16", "data.eval_samples=16"]
SHORT = ["train.max_steps=6"]  # of jobs that run at once, whose times are not read
SHARED = ("samples/s", "step ms", "MFU", "device MiB", "context MiB")  # what other jobs on the same GPU change
HEADINGS = (
    "recipe",
    "changed",
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


def jobs() -> list[list[str]]:
    """The main job, each precision, each optimizer and each mode with one process, and what a played GPU cannot show
    (compiled code, CUDA's managed memory), in both recipes."""
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
    variants += [
        ["precision=bf16", "accumulation=x4", "batch.per_device=1", "checkpointing=full", "train.max_steps=20"]
    ]
    guide = [[*JOB, *variant] for variant in variants]
    return [[f"recipe={recipe}", *job] for job in guide + decoder_jobs() for recipe in ("trainer", "accelerate")]


def decoder_jobs() -> list[list[str]]:
    """A decoder with each lever that the encoder's jobs leave out."""
    variants: list[list[str]] = [[]]
    for menu, plain in (("checkpointing", "none"), ("loss", "standard"), ("kernels", "none"), ("adapter", "none")):
        variants += [[f"{menu}={name}"] for name in menus.options(menu, [paths.CONF]) if name != plain]
    variants += [["adapter=qlora", "adapter.bits=8"], ["adapter=lora", "adapter.dora=true", "checkpointing=full"]]
    variants += [["compile=true", "compile_regions=true"], ["model.attention=eager"], ["precision=fp8"]]
    variants += [["data=text", f"data.path={ROOT / 'README.md'}", "data.packing=true"], ["model=mixtral_tiny"]]
    variants += [["optim.in_backward=true", "train.max_grad_norm=0"]]
    variants += [["parallelism=fsdp", "parallelism.num_processes=1", "parallelism.cpu_offload=true"]]
    variants += [["parallelism=fsdp", "parallelism.num_processes=1", "adapter=qlora"]]
    return [[*DECODER, *variant] for variant in variants]


def run_all(fork_server: fork_client.ForkServer, target: Path, name: str, at_once: int = 1) -> list[record.Record]:
    """Run every job, `at_once` at a time. Each record is written to <target>/<name>.jsonl when its job ends."""
    asked = []
    for overrides in [job + (SHORT if at_once > 1 else []) for job in jobs()]:  # Hydra composes one at a time
        _, composed, problems = compose.compose(paths.CONF, *overrides)
        if composed is None or problems:
            print("refused:", " ".join(overrides), *problems, sep="\n  ", flush=True)
        else:
            asked.append((overrides, composed))
    with (
        open(target / f"{name}.jsonl", "w") as lines,
        tempfile.TemporaryDirectory() as scratch,
        ThreadPoolExecutor(at_once) as pool,
    ):

        def one(index: int) -> record.Record:
            overrides, composed = asked[index]
            folder = Path(scratch, str(index))
            folder.mkdir()
            start = time.monotonic()
            outcome = supervise.run(launch.Job(composed, folder), lambda *_: None, fork_server)
            text = f"{outcome.status:<8}{time.monotonic() - start:6.1f} s  {' '.join(overrides)}"
            if outcome.status == "failed":
                text += "\n" + (folder / run_folder.LOG_FILE).read_text()[-3000:]
            print(text, flush=True)
            lines.write(json.dumps(json.loads(record_file.to_json(outcome))) + "\n")
            lines.flush()
            return outcome

        return list(pool.map(one, range(len(asked))))


def _figure(value: float | None, unit: float | None = MIB, decimals: int = 0) -> str:
    """A cell; empty where the machine has not given the figure."""
    return "" if value is None or not unit else f"{value / unit:.{decimals}f}"


def table(records: list[record.Record], at_once: int = 1) -> str:
    """Markdown: the speed, and the memory ledger's peak beside CUDA's. at_once: jobs that shared the GPU."""
    headings = [name for name in HEADINGS if at_once == 1 or name not in SHARED]
    rows = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    for outcome in records:
        speed, memory = outcome.speed, outcome.memory
        changed = [word for word in outcome.overrides if not word.startswith("recipe=") and word not in JOB + SHORT]
        cells = [outcome.recipe, f"`{' '.join(changed)}`" if changed else "", outcome.status]
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


def page(gpu: host.Gpu, records: list[record.Record], at_once: int = 1) -> str:
    """The table with a heading: the GPU, the versions of the libraries, what was run."""
    shared = f" {at_once} jobs at once shared the GPU, so times are left out." if at_once > 1 else ""
    versions = ", ".join(f"{name} {value}" for name, value in records[0].environment["versions"].items() if value)
    return (
        f"# {gpu.name}: what CUDA counted, and what the ledger counted\n\n"
        f"Measured by `python scripts/gpu_checks.py` on {time.strftime('%Y-%m-%d')}, {gpu.memory_bytes / MIB:.0f} MiB, "
        f"compute capability {gpu.capability[0]}.{gpu.capability[1]}; {versions}.\n"
        f"Each job: {' '.join(JOB)}, or what stands beside it.{shared}\n\n{table(records, at_once)}\n"
    )


def run(target: Path, with_tests: bool, at_once: int = 1) -> int:
    """Run the tests that need a GPU and every job, and write gpu_<device>.md and .jsonl into `target`.

    Returns the exit code: 1 when a test or a job fails, 2 without a GPU.
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
        records = run_all(fork_server, target, name, at_once)
    finally:
        fork_server.close()
    if not records:
        print("Every job was refused; nothing was measured.", file=sys.stderr)
        return 1
    text = page(gpu, records, at_once)
    (target / f"{name}.md").write_text(text)
    print(text)
    return 1 if failed or any(outcome.status != "ok" for outcome in records) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "docs/results", help="folder for the tables")
    parser.add_argument("--no-tests", action="store_true", help="the tables alone")
    parser.add_argument("--at-once", type=int, default=1, help="jobs that share the GPU; more than one: no times")
    options = parser.parse_args()
    return run(options.into, not options.no_tests, options.at_once)


if __name__ == "__main__":
    sys.exit(main())
