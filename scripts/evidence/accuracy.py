"""Predictions against measurements on the GPU at hand, in one call of under ten minutes.

    python scripts/evidence/accuracy.py [--into docs/results] [--seconds 540] [--passes 1] [overrides ...]

Reads the configurations from docs/results/accuracy_configurations.txt, which was written before the first was
measured. Each is predicted (several at once), then measured in a process of its own, then run again with its
memory capped at the prediction plus 3 %. Writes <into>/accuracy_<device>.md and .csv with every error, signed.
What --seconds leaves no time for is missing from the page, which says so; the same command continues from there
(records are kept in --records). --passes 0 predicts alone, here or on another machine, and writes no page. The
overrides are added to every configuration: `device=cpu` and small sizes compare the memory ledger of the predicted
step with that of the real one, without a GPU.
Exit code 1 when a configuration could not be predicted or measured.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from checkout import ROOT

import accuracy_page
from accuracy_page import CAP_MARGIN, Row

from legroom import paths
from legroom.cli import sweep
from legroom.jobs import fork_client, launch, supervise
from legroom.machine import host
from legroom.options import compose
from legroom.records.record import Error, Record
from legroom.units import GIB

CONFIGURATIONS = ROOT / "docs" / "results" / "accuracy_configurations.txt"
JOB = ["recipe=accelerate", "data.samples=256", "train.max_steps=13", "eval.enabled=false", "tracker=none"]
CAPPED = ["train.max_steps=4"]  # enough for every allocation to be repeated


@dataclass
class Comparison:
    """What a call is asked to do. more: overrides of every configuration. records: the folder of their records.
    passes: how often the whole list is measured, one time after the other; the median of each configuration counts.
    """

    configurations: Path
    more: list[str]
    records: Path
    deadline: float  # of time.monotonic(): nothing is started after it
    passes: int = 1

    def job(self, *overrides: str, number: int = 0) -> launch.Job | Record:
        """A job to run; or its record, where it has run before or is refused. number: of the pass.

        Raises ValueError for a wrong key.
        """
        _, outcome, problems = compose.compose(paths.CONF, *overrides)
        if outcome is None:
            raise ValueError(f"{' '.join(overrides)}: {' '.join(problems)}")
        if problems:
            outcome.status, outcome.error = "refused", Error("load", "Refusal", " ".join(problems))
            return outcome
        folder = self.records / (f"pass_{number + 1}" if number else "") / outcome.config_key
        before = sweep.final_record(folder)
        if before is None:
            folder.mkdir(parents=True, exist_ok=True)
            sweep.clear(folder)
        return before or launch.Job(outcome, folder)


def run(comparison: Comparison, target: Path) -> int:
    """Predict and measure, write accuracy_<device>.md and .csv into `target`, and print the page; without passes, only
    predict.

    Returns the exit code: 1 when a configuration could not be predicted or measured.
    """
    rows = [Row(overrides) for overrides in accuracy_page.read(comparison.configurations)]
    device = host.gpus()[0].name if host.gpus() and "device=cpu" not in comparison.more else "CPU"
    name = "accuracy_" + device.lower().replace("nvidia", "").strip().replace(" ", "_")
    fork_server = fork_client.ForkServer()
    try:
        predict_all(rows, comparison, fork_server)
        if comparison.passes:
            measure_all(rows, comparison, fork_server)
    finally:
        fork_server.close()
    if not comparison.passes:
        return 0 if all(row.predicted is not None and row.predicted.status in ("ok", "oom") for row in rows) else 1
    target.mkdir(parents=True, exist_ok=True)
    text = accuracy_page.page(rows, f"{device}: predicted against measured")
    first = next((row.measured for row in rows if row.measured is not None), None)
    if first is not None:
        versions = ", ".join(f"{key} {value}" for key, value in first.environment["versions"].items() if value)
        text += f"\nMeasured by `python scripts/evidence/accuracy.py` on {time.strftime('%Y-%m-%d')}; {versions}.\n"
    (target / f"{name}.md").write_text(text)
    lines = accuracy_page.csv_rows(rows)
    with open(target / f"{name}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    print(text)
    runs = [run for row in rows for run in (row.predicted, row.measured)]
    return 0 if all(run is not None and run.status in ("ok", "oom") for run in runs) else 1


def finish(job: launch.Job | Record, fork_server: fork_client.ForkServer) -> Record:
    """The record of a job that has yet to run, or of one that has run."""
    return job if isinstance(job, Record) else supervise.run(job, lambda *_: None, fork_server)


def predict_all(rows: list[Row], comparison: Comparison, fork_server: fork_client.ForkServer) -> None:
    """Predict every configuration, as many at once as there are cores."""
    jobs = [comparison.job(*JOB, *row.overrides, *comparison.more, "recipe=estimate") for row in rows]

    def predict(row: Row, job: launch.Job | Record) -> None:
        if time.monotonic() < comparison.deadline:
            row.predicted = finish(job, fork_server)
            show("predicted", row.predicted, row.overrides)

    with ThreadPoolExecutor(host.usable_cores()) as pool:
        list(pool.map(predict, rows, jobs))


def measure_all(rows: list[Row], comparison: Comparison, fork_server: fork_client.ForkServer) -> None:
    """Measure every configuration, then each with its memory capped. One at a time: runs at once slow each other."""
    on_gpu = bool(host.gpus()) and "device=cpu" not in comparison.more
    ledger = f"measure.ledger={'false' if on_gpu else 'true'}"  # on a GPU, CUDA's allocator counts
    for number in range(comparison.passes):
        for row in rows:
            if time.monotonic() > comparison.deadline:
                return
            job = comparison.job(*JOB, ledger, *row.overrides, *comparison.more, number=number)
            row.runs.append(finish(job, fork_server))
            show("measured", row.runs[-1], row.overrides)
    if not on_gpu:
        return
    for row in rows:
        reserved_bytes = accuracy_page.figure(row.predicted, "reserved")
        if time.monotonic() > comparison.deadline or reserved_bytes is None:
            continue
        limit = f"launch.memory_limit_gib={reserved_bytes * CAP_MARGIN / GIB:.6f}"
        job = comparison.job(*JOB, ledger, *CAPPED, *row.overrides, *comparison.more, limit)
        row.capped = finish(job, fork_server)
        show("capped", row.capped, row.overrides)


def show(action: str, run: Record, overrides: list[str]) -> None:
    """A line on one run."""
    why = f": {run.error.message.splitlines()[0]}" if run.error else ""
    print(f"{action:<10}{run.status:<8}{' '.join(overrides)}{why}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("overrides", nargs="*", help="added to every configuration")
    parser.add_argument("--configurations", type=Path, default=CONFIGURATIONS, metavar="FILE")
    parser.add_argument("--into", type=Path, default=ROOT / "docs/results", metavar="DIR", help="where the page goes")
    parser.add_argument(
        "--records", type=Path, default=ROOT / "outputs/accuracy", metavar="DIR", help="where records go"
    )
    parser.add_argument("--seconds", type=float, default=540, help="start nothing after this long")
    parser.add_argument("--passes", type=int, default=1, help="measure the list so often; 0: predict only")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    comparison = Comparison(options.configurations, options.overrides, options.records, deadline, options.passes)
    return run(comparison, options.into)


if __name__ == "__main__":
    sys.exit(main())
