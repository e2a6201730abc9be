"""Published runs of large layouts and what an estimate of the same set-up says: writes docs/results/large_layouts.md.

    python scripts/evidence/large_layouts.py [--only NAME...] [--records outputs/large_layouts] [--into docs/results]

Records are kept, so the same command goes on where it was stopped. --only: rows whose names begin so are estimated and
printed, and no page is written; torchtitan.8b-8 is a quick one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from checkout import ROOT

from large_layout_rows import ROWS, SOURCES, UNTYPED, Row
from markdown_table import markdown, percent

from legroom.units import GIB

COMMON = "recipe=estimate estimate.hint_seconds=0 train.max_steps=1"
FINISHED = ("ok", "oom", "refused")  # an estimate that was stopped is made again
TIME_LIMIT, MEMORY_LIMIT = 0.2, 0.1  # an error that is larger deserves a reason
HEADINGS = ["run", "tokens/s of a GPU", "predicted", "error", "reserved, GiB", "predicted", "error", "not as published"]


HEAD = """# Large layouts, published and predicted

Published runs on 8 to 8,192 GPUs, each typed as its source states it, beside its estimate: tokens a second of one GPU
with the interval, and what CUDA's allocator reserves on the fullest GPU where the source has it. The overrides of each
run are in `scripts/evidence/large_layout_rows.py`. What cannot be typed stands in the last column; where it changes the
time, no error of the time is given. An error of time up to 20 %, and of memory up to 10 %, is near enough here.

The rows are not blind: they were looked at while causes were sought. No constant was fitted to them; each has its
source in `estimator/speed/efficiencies.yaml`.
"""
CAUSES = [
    ["torchtitan, 8B on 8 H100", "2.25", "2.36", "2.58", "2.73", "2.78", "2.81", "2.84"],
    ["torchtitan, 8B on 128 H100", "2.21", "2.31", "2.53", "2.68", "2.77", "2.80", "2.92"],
    ["llm-foundry, 7B on 8 H100", "0.94", "1.00", "1.00", "1.02", "1.04", "1.07", "1.15"],
    ["llm-foundry, 7B on 512 H100", "0.91", "0.97", "0.97", "1.00", "1.04", "1.07", "1.27"],
    ["llm-foundry, 30B on 128 A100", "12.0", "12.6", "12.6", "12.6", "13.1", "13.3", "14.2"],
]
ADDED = ["products", "500 W", "flash attention 2", "slowest GPU", "NCCL's kernels"]
TAIL = f"""## What was wrong, and what is left

With the estimator of 49fb991e (29 November 2026) eleven of these runs were predicted 13 to 39 % too fast, in the median
26 %. The seconds of a step, as one cause after the other was added (with flash attention 2 as another rate of the same
kernels; typed, transformers adds a few copies):

{markdown(["run", "before", *ADDED, "published"], CAUSES)}

- Products: their rate was that of the best shape. Of usual shapes with normal numbers an H100 has 720 of 989 TFLOP/s in
  bf16 (SemiAnalysis), an A100 257 of 312 (thonking.ai).
- 500 W in place of 700: `gpu.power_limit`. Boards of one chip sustain products by the 0.46th power of their watts.
- Flash attention 2: torch 2.13 chooses cuDNN's kernel on an H100, which is faster. At the end of 2024 cuDNN's had to be
  asked for (pytorch/pytorch#138522; huggingface/transformers#48163 has when that changed). It is typed.
- The slowest GPU: boards of one model differ by 5 % on a machine, and all wait for the slowest.
- NCCL's kernels run on 24 multiprocessors inside a machine and on 16 between machines.

Runs on 512 GPUs lose more against those on 8 than is predicted. The likely cause is the network: rings that share
switches, and ranks that come late for a collective, are not modelled.

Not explained is the memory of torchtitan's 70B with TP: what the overrides keep is a third less. Of Llama 3 405B
neither is right: the paper's schedule has more and smaller chunks than the typed 1F1B, whose ranks wait for 32 % of the
time (with four chunks 10 %), and what it frees early is not published.

On one A100 the first of these changes took the error of 15 fine-tunings with adapters (fms-acceleration) from 13.4 to
11.1 %, and of 4 whole ones from 13.5 to 10.7 %, in the median, all still too fast. The steps of
[published_speed.md](published_speed.md) are in fp16, tf32 and fp32 on these chips, and none of them changed.

## Published layouts that are not typed

{markdown(["run", "published", "what is missing"], UNTYPED)}
"""


@dataclass(frozen=True)
class Compared:
    """A row beside its estimate. problem: why there is none."""

    row: Row
    tokens: float | None = None
    low: float | None = None
    high: float | None = None
    gib: float | None = None
    problem: str = ""

    @property
    def time_error(self) -> float | None:
        if self.tokens is None or not self.row.timed:
            return None
        return self.tokens / self.row.tokens - 1

    @property
    def memory_error(self) -> float | None:
        if self.gib is None or self.row.gib is None:
            return None
        return self.gib / self.row.gib - 1


def estimate(row: Row, folder: Path) -> dict[str, Any]:
    """The record of a row's estimate, which is made unless there is one."""
    file = folder / "result.json"
    if file.is_file() and json.loads(file.read_text())["status"] not in FINISHED:
        shutil.rmtree(folder)
    if not file.is_file():
        words = [*COMMON.split(), *row.overrides.split(), f"data.samples={samples(row)}", f"hydra.run.dir={folder}"]
        if row.sizes:
            sizes = folder.with_name(f"{folder.name}.sizes")
            sizes.mkdir(exist_ok=True)
            (sizes / "config.json").write_text(json.dumps(row.sizes))
            words.append(f"model.config={sizes}")
        with open(folder.with_name(f"{folder.name}.log"), "w") as log:
            subprocess.run([sys.executable, str(ROOT / "train.py"), *words], stdout=log, stderr=log)
    return json.loads(file.read_text())


def samples(row: Row) -> int:
    """The rows of one step on all GPUs."""
    typed = dict(word.split("=", 1) for word in row.overrides.split())
    together = 1
    for key in ("tensor_size", "context", "stages"):
        together *= int(typed.get(f"parallelism.{key}", 1))
    return row.gpus // together * int(typed["batch.per_device"]) * int(typed.get("accumulation.steps", 1))


def compared(row: Row, record: dict[str, Any]) -> Compared:
    """A row beside its record."""
    speed, memory = record["speed"], record["memory"]
    if not speed["step_seconds_median"]:
        message = record["error"]["message"] if record["error"] else ""
        return Compared(row, problem=f"{record['status']}: {message}")
    tokens = speed["tokens_per_second"] / row.gpus
    slower = speed["step_seconds_high"] / speed["step_seconds_median"]
    faster = speed["step_seconds_low"] / speed["step_seconds_median"]
    problem = "" if record["status"] == "ok" else "does not fit, says the estimate"
    return Compared(row, tokens, tokens / slower, tokens / faster, memory["peak_reserved_bytes"] / GIB, problem)


def line(each: Compared) -> list[str]:
    """A row of the table."""
    row = each.row
    predicted = f"{each.tokens:,.0f} ({each.low:,.0f} to {each.high:,.0f})" if each.tokens else ""
    gib = f"{each.gib:.1f}" if each.gib else ""
    said = "; ".join(words for words in (row.unlike, each.problem) if words)
    published_gib = "" if row.gib is None else f"{row.gib:.1f}"
    return [
        row.layout,
        f"{row.tokens:,.0f}",
        predicted,
        percent(each.time_error),
        published_gib,
        gib if row.gib else "",
        percent(each.memory_error),
        said,
    ]


def summary(rows: Sequence[Compared]) -> str:
    """How large the errors of some rows are."""
    parts = []
    for name, limit, errors in (
        ("tokens/s", TIME_LIMIT, [each.time_error for each in rows]),
        ("reserved memory", MEMORY_LIMIT, [each.memory_error for each in rows]),
    ):
        known = [error for error in errors if error is not None]
        if not known:
            continue
        sizes = [abs(error) for error in known]
        within = sum(size <= limit for size in sizes)
        parts.append(
            f"{name} of {len(known)} runs: {within} within {limit:.0%}, median size {statistics.median(sizes):.1%}, "
            f"signed median {statistics.median(known):+.1%}, worst {max(known, key=abs):+.1%}"
        )
    return "; ".join(parts)


def page(rows: Sequence[Compared]) -> str:
    """The whole page."""
    made = (
        f"Made by `python scripts/evidence/large_layouts.py` on {datetime.date.today()}, with torch {version('torch')}."
    )
    parts = [HEAD.strip(), made, f"All: {summary(rows)}."]
    for source, (title, where) in SOURCES.items():
        own = [each for each in rows if each.row.source == source]
        if own:
            parts += [f"## {title}", where, f"Here: {summary(own)}.", markdown(HEADINGS, [line(each) for each in own])]
    parts.append(TAIL.strip())
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--records", type=Path, default=ROOT / "outputs" / "large_layouts")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "results")
    arguments = parser.parse_args()
    folder = arguments.records.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    records: dict[str, Path] = {}  # several runs are typed alike
    for row in ROWS:
        records.setdefault(f"{row.overrides} {row.sizes}", folder / row.name)
        if row.name.startswith(tuple(arguments.only)):
            rows.append(compared(row, estimate(row, records[f"{row.overrides} {row.sizes}"])))
            print(" | ".join([row.name, *line(rows[-1])]), flush=True)
    if arguments.only == [""]:
        (arguments.into / "large_layouts.md").write_text(page(rows))


if __name__ == "__main__":
    main()
