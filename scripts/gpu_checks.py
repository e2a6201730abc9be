"""All that needs a GPU, in one call of under ten minutes: correctness first, then the tables.

    python scripts/gpu_checks.py [--into docs/results]

Runs the tests marked `gpu`, then the guide's model in both recipes with every precision and every
optimizer, and writes what CUDA counted beside what the ledger counted to <into>/gpu_<device>.md and
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from recipes.jobs import fork_client, launch, supervise
from recipes.machine import host
from recipes.options import compose, menus
from recipes.records import record, record_file, run_folder
from recipes.units import MIB

JOB = ["model=bert_large", "data.samples=160", "train.max_steps=30"]  # the guide's model, batch 4, 512 tokens


def jobs() -> list[list[str]]:
    """The main job, each precision, each optimizer and each mode with one process, in both recipes."""
    folders = [ROOT / "conf"]
    words = [[]]
    words += [[f"precision={name}"] for name in menus.options("precision", folders) if name != "fp32"]
    words += [["precision=bf16", f"optim={name}"] for name in menus.options("optim", folders) if name != "adamw"]
    words += [
        ["precision=bf16", f"parallelism={mode}", "parallelism.num_processes=1"] for mode in ("dp", "ddp", "fsdp")
    ]
    words += [["precision=fp16", "parallelism=fsdp", "parallelism.num_processes=1"]]
    words += [["precision=bf16", "accumulation=x4", "batch.per_device=1", "checkpointing=full", "train.max_steps=20"]]
    return [[f"recipe={recipe}", *JOB, *extra] for extra in words for recipe in ("trainer", "accelerate")]


def run_all(nursery: fork_client.ForkServer, into: Path, name: str) -> list[record.Record]:
    """Run every job; each record goes to the .jsonl as soon as it is there."""
    records = []
    with open(into / f"{name}.jsonl", "w") as lines, tempfile.TemporaryDirectory() as scratch:
        for index, words in enumerate(jobs()):
            _, outcome, problems = compose.compose(ROOT / "conf", *words)
            if problems:
                print("refused:", " ".join(words), *problems, sep="\n  ")
                continue
            folder = Path(scratch, str(index))
            folder.mkdir()
            began = time.monotonic()
            outcome = supervise.run(launch.Job(outcome, folder), lambda *_: None, nursery)
            print(f"{outcome.status:<8}{time.monotonic() - began:6.1f} s  {' '.join(words)}", flush=True)
            if outcome.status == "failed":
                print((folder / run_folder.LOG_FILE).read_text()[-3000:])
            lines.write(json.dumps(json.loads(record_file.to_json(outcome))) + "\n")
            lines.flush()
            records.append(outcome)
    return records


def table(records: list[record.Record]) -> str:
    """Markdown: speed, and the ledger's peak beside CUDA's."""
    rows = [
        "| recipe | parallelism | precision | optim | batch | checkpointing | status | samples/s | step ms | MFU | ledger MiB "
        "| allocated MiB | ledger / allocated | reserved MiB | device MiB | context MiB |",
        "|" + " --- |" * 16,
    ]
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
                f"{speed.step_seconds_median * 1000:.1f}",
                f"{speed.mfu:.1%}" if speed.mfu is not None else "",
                f"{memory.peak_tensor_bytes / MIB:.0f}",
                f"{memory.peak_allocated_bytes / MIB:.0f}",
                f"{memory.peak_tensor_bytes / memory.peak_allocated_bytes:.3f}",
                f"{memory.peak_reserved_bytes / MIB:.0f}",
                f"{memory.device_used_bytes / MIB:.0f}",
                f"{memory.context_bytes / MIB:.0f}",
            ]
        rows.append("| " + " | ".join(cells + [""] * (16 - len(cells))) + " |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "docs/results", help="folder for the tables")
    parser.add_argument("--no-tests", action="store_true", help="the tables alone")
    options = parser.parse_args()
    if not host.gpus():
        print("There is no GPU that torch could use here; nothing was run.", file=sys.stderr)
        return 2
    gpu = host.gpus()[0]
    failed = 0
    if not options.no_tests:
        failed = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-rfs"], cwd=ROOT).returncode
    options.into.mkdir(parents=True, exist_ok=True)
    name = "gpu_" + gpu.name.lower().replace("nvidia", "").strip().replace(" ", "_")
    nursery = fork_client.ForkServer()
    try:
        records = run_all(nursery, options.into, name)
    finally:
        nursery.close()
    versions = ", ".join(f"{k} {v}" for k, v in records[0].environment["versions"].items() if v)
    page = (
        f"# {gpu.name}: what CUDA counted, and what the ledger counted\n\n"
        f"Measured by `python scripts/gpu_checks.py` on {time.strftime('%Y-%m-%d')}, {gpu.memory_bytes / MIB:.0f} MiB, "
        f"compute capability {gpu.capability[0]}.{gpu.capability[1]}; {versions}.\n"
        f"Each job: {' '.join(JOB)}; the records stand beside this page.\n\n{table(records)}\n"
    )
    (options.into / f"{name}.md").write_text(page)
    print(page)
    return 1 if failed or any(r.status != "ok" for r in records) else 0


if __name__ == "__main__":
    sys.exit(main())
