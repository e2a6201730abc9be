"""Everything that needs a GPU, in one call of under ten minutes: correctness first, then the tables.

    python scripts/gpu_checks.py [--into docs/results]

Runs the tests marked `gpu`, then the guide's model in both recipes with every precision and every
optimizer, and writes what CUDA counted beside what the memory ledger counted to <into>/gpu_<device>.md and
.jsonl. Exit code 1 when a test or a job fails; without a GPU it says so and exits with 2.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checkout import ROOT

from legroom import paths
from legroom.jobs import fork_client, launch, supervise
from legroom.machine import host
from legroom.options import compose, menus
from legroom.records import record, record_file, run_folder
from legroom.units import MIB

JOB = ["model=bert_large", "data.samples=160", "train.max_steps=30"]  # the guide's model, batch 4, 512 tokens
HEADINGS = (
    "recipe",
    "parallelism",
    "precision",
    "optim",
    "batch",
    "checkpointing",
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
    return [[f"recipe={recipe}", *JOB, *variant] for variant in variants for recipe in ("trainer", "accelerate")]


def run_all(fork_server: fork_client.ForkServer, target: Path, name: str) -> list[record.Record]:
    """Run every job. Each record is written to <target>/<name>.jsonl when its job ends."""
    records = []
    with open(target / f"{name}.jsonl", "w") as lines, tempfile.TemporaryDirectory() as scratch:
        for index, overrides in enumerate(jobs()):
            _, outcome, problems = compose.compose(paths.CONF, *overrides)
            if outcome is None or problems:
                print("refused:", " ".join(overrides), *problems, sep="\n  ")
                continue
            folder = Path(scratch, str(index))
            folder.mkdir()
            start = time.monotonic()
            outcome = supervise.run(launch.Job(outcome, folder), lambda *_: None, fork_server)
            print(f"{outcome.status:<8}{time.monotonic() - start:6.1f} s  {' '.join(overrides)}", flush=True)
            if outcome.status == "failed":
                print((folder / run_folder.LOG_FILE).read_text()[-3000:])
            lines.write(json.dumps(json.loads(record_file.to_json(outcome))) + "\n")
            lines.flush()
            records.append(outcome)
    return records


def _figure(value: float | None, unit: float | None = MIB, decimals: int = 0) -> str:
    """A cell; empty where the machine has not given the figure."""
    return "" if value is None or not unit else f"{value / unit:.{decimals}f}"


def table(records: list[record.Record]) -> str:
    """Markdown: the speed, and the memory ledger's peak beside CUDA's."""
    rows = ["| " + " | ".join(HEADINGS) + " |", "|" + " --- |" * len(HEADINGS)]
    for outcome in records:
        config, speed, memory = outcome.config, outcome.speed, outcome.memory
        cells = [
            outcome.recipe,
            config["parallelism"]["name"],
            config["precision"]["name"],
            config["optim"]["name"],
            f"{config['batch']['per_device']} x {config['accumulation']['steps']}",
            config["checkpointing"]["name"],
            outcome.status,
        ]
        if outcome.status == "ok":
            cells += [
                f"{speed.samples_per_second:.2f}",
                _figure(speed.step_seconds_median, 1 / 1000, 1),
                f"{speed.mfu:.1%}" if speed.mfu is not None else "",
                _figure(memory.peak_tensor_bytes),
                _figure(memory.peak_allocated_bytes),
                _figure(memory.peak_tensor_bytes, memory.peak_allocated_bytes, 3),
                _figure(memory.peak_reserved_bytes),
                _figure(memory.device_used_bytes),
                _figure(memory.context_bytes),
            ]
        rows.append("| " + " | ".join(cells + [""] * (len(HEADINGS) - len(cells))) + " |")
    return "\n".join(rows)


def page(gpu: host.Gpu, records: list[record.Record]) -> str:
    """The table with a heading: the GPU, the versions of the libraries, what was run."""
    versions = ", ".join(f"{name} {value}" for name, value in records[0].environment["versions"].items() if value)
    return (
        f"# {gpu.name}: what CUDA counted, and what the ledger counted\n\n"
        f"Measured by `python scripts/gpu_checks.py` on {time.strftime('%Y-%m-%d')}, {gpu.memory_bytes / MIB:.0f} MiB, "
        f"compute capability {gpu.capability[0]}.{gpu.capability[1]}; {versions}.\n"
        f"Each job: {' '.join(JOB)}; the records stand beside this page.\n\n{table(records)}\n"
    )


def run(target: Path, with_tests: bool) -> int:
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
        records = run_all(fork_server, target, name)
    finally:
        fork_server.close()
    if not records:
        print("Every job was refused; nothing was measured.", file=sys.stderr)
        return 1
    text = page(gpu, records)
    (target / f"{name}.md").write_text(text)
    print(text)
    return 1 if failed or any(outcome.status != "ok" for outcome in records) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "docs/results", help="folder for the tables")
    parser.add_argument("--no-tests", action="store_true", help="the tables alone")
    options = parser.parse_args()
    return run(options.into, not options.no_tests)


if __name__ == "__main__":
    sys.exit(main())
