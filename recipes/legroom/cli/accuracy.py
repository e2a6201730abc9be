"""The command `scripts/accuracy.py`: predict, measure and cap a list of configurations; write the page of errors."""

from __future__ import annotations

import csv
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from legroom import paths
from legroom.cli import sweep
from legroom.foresight.validation import accuracy_page
from legroom.foresight.validation.accuracy_page import CAP_MARGIN, Row
from legroom.jobs import fork_client, launch, supervise
from legroom.machine import host
from legroom.options import compose
from legroom.records.record import Record
from legroom.units import GIB

CONFIGURATIONS = paths.CHECKOUT / "docs" / "results" / "accuracy_configurations.txt"
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
        outcome = compose.compose_record(paths.CONF, *overrides)
        if outcome.status == "refused":
            return outcome
        folder = self.records / (f"pass_{number + 1}" if number else "") / outcome.config_key
        before = sweep.final_record(folder)
        if before is None:
            folder.mkdir(parents=True, exist_ok=True)
            sweep.clear(folder)
        return before or launch.Job(outcome, folder)


def run(comparison: Comparison, target: Path) -> int:
    """Predict and measure, write accuracy_<device>.md and .csv into `target`, and print the page.

    Returns the exit code: 1 when a configuration could not be predicted or measured.
    """
    rows = [Row(overrides) for overrides in accuracy_page.read(comparison.configurations)]
    device = host.gpus()[0].name if host.gpus() and "device=cpu" not in comparison.more else "CPU"
    name = "accuracy_" + device.lower().replace("nvidia", "").strip().replace(" ", "_")
    fork_server = fork_client.ForkServer()
    try:
        predict_all(rows, comparison, fork_server)
        measure_all(rows, comparison, fork_server)
    finally:
        fork_server.close()
    target.mkdir(parents=True, exist_ok=True)
    text = accuracy_page.page(rows, f"{device}: predicted against measured")
    first = next((row.measured for row in rows if row.measured is not None), None)
    if first is not None:
        versions = ", ".join(f"{key} {value}" for key, value in first.environment["versions"].items() if value)
        text += f"\nMeasured by `python scripts/accuracy.py` on {time.strftime('%Y-%m-%d')}; {versions}.\n"
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
