"""The time of whole runs on a CPU, predicted from short ones (estimate.short_run) and then measured.

    python scripts/evidence/whole_runs.py [--seconds 70] [--only NAME ...] [--into FOLDER]

For each configuration: a run of 20 steps, an estimate of the whole run by its times, and the whole run, whose number of
steps is such that it is predicted to take --seconds. Times are of the processor, of the command and its processes: each
run computes in one thread, so that this is what it takes on a machine of its own, however many others share it now.
Prints a row of docs/results/whole_runs.md for each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from checkout import ROOT

from legroom.records import record_file

# Before anything else in each process: what measures time measures the processor's.
PROCESSOR_TIME = "import time\ntime.perf_counter = time.process_time\n"
SHORT_STEPS = 20
TEXT = ["data=text", "data.path={texts}", "data.task=classification", "data.seq_len=256"]
CHAT = ["data=chat", "data.path={chat}", "data.seq_len=256"]
CONFIGURATIONS = {
    "uneven texts": ["model=bert_tiny", *TEXT, "batch.per_device=8"],
    "evaluations and checkpoints": ["model=bert_tiny", *TEXT, "eval.every_steps={tenth}", "save.every_steps={tenth}"],
    "rows of one length, x2": ["model=gpt2_tiny", "data.seq_len=128", "accumulation=x2", "data.samples=4000"],
    "conversations, LoRA": ["model=llama_tiny", *CHAT, "adapter=lora", "batch.per_device=4"],
    "grouped by length": [
        "model=bert_tiny",
        *TEXT,
        "data.group_by_length=true",
        "optim=adafactor",
        "batch.per_device=8",
    ],
    "full checkpointing": ["model=gpt2_tiny", "data.seq_len=256", "checkpointing=full", "batch.per_device=2"],
}


def main() -> int:
    """Measure and print the rows. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--only", nargs="*", default=list(CONFIGURATIONS))
    parser.add_argument("--into", type=Path, default=None)
    arguments = parser.parse_args()
    into = arguments.into or Path(tempfile.mkdtemp(prefix="whole-runs-"))
    into.mkdir(parents=True, exist_ok=True)
    (into / "site").mkdir(exist_ok=True)
    (into / "site" / "sitecustomize.py").write_text(PROCESSOR_TIME)
    write_rows(into)
    print("| run | steps | predicted s (low to high) | measured s | error |\n| --- | ---: | ---: | ---: | ---: |")
    for name in arguments.only:
        print(row(name, into, arguments.seconds), flush=True)
    return 0


def write_rows(into: Path) -> None:
    """Rows of very different lengths."""
    chance = random.Random(3)
    texts, chats = [], []
    for number in range(800):
        length = min(250, int(chance.lognormvariate(4.2, 0.7)) + 3)
        texts.append({"text": "".join(chance.choices("abcdefgh ", k=length)), "label": number % 2})
        half = "".join(chance.choices("abcdefgh ", k=max(5, length // 2)))
        chats.append({"messages": [{"role": "user", "content": half}, {"role": "assistant", "content": half}]})
    for file, rows in (("texts.jsonl", texts), ("chat.jsonl", chats)):
        (into / file).write_text("".join(json.dumps(each) + "\n" for each in rows))


def row(name: str, into: Path, seconds: float) -> str:
    """The row of a configuration in the table."""
    folder = into / name.replace(" ", "_").replace(",", "")
    short = folder / "short"
    run(typed(name, into, SHORT_STEPS), "recipe=accelerate", f"train.max_steps={SHORT_STEPS}", into=short)
    steps = 400
    for attempt in ("first", "second"):  # the steps that the given time has are known after the first
        estimate = folder / attempt
        run(
            typed(name, into, steps),
            "recipe=estimate",
            f"train.max_steps={steps}",
            f"estimate.short_run={short}",
            into=estimate,
        )
        whole = record_file.read(estimate).whole_run
        assert whole is not None
        if attempt == "first":
            of_steps = next(part["seconds"] for part in whole.parts if part["name"] == "steps")
            steps = max(2 * SHORT_STEPS, int((seconds - whole.seconds + of_steps) / of_steps * steps))
    measured = run(typed(name, into, steps), "recipe=accelerate", f"train.max_steps={steps}", into=folder / "whole")
    error = whole.seconds / measured - 1
    interval = f"{whole.seconds:.1f} ({whole.seconds_low:.1f} to {whole.seconds_high:.1f})"
    return f"| {name} | {steps} | {interval} | {measured:.1f} | {error:+.1%} |"


def typed(name: str, into: Path, steps: int) -> list[str]:
    """The overrides of a configuration for a run of so many steps."""
    places = {"texts": into / "texts.jsonl", "chat": into / "chat.jsonl", "tenth": max(1, steps // 10)}
    return ["device=cpu", *(text.format(**places) for text in CONFIGURATIONS[name])]


def run(overrides: list[str], *more: str, into: Path) -> float:
    """Run the command. Returns the processor's seconds of all its processes."""
    path = f"{into.parents[1] / 'site'}{os.pathsep}{ROOT / 'recipes'}"
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, str(ROOT / "train.py"), *overrides, *more, f"hydra.run.dir={into}"]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
