"""Predictions against measurements on the GPU at hand, in one call of under ten minutes.

    python scripts/accuracy.py [--into docs/results] [--seconds 540] [words ...]

Reads the configurations from docs/results/accuracy_configurations.txt, which stood before the first was
measured. Each is predicted (several at once), then measured in a process of its own, then run again with its
memory capped at the prediction plus 3 %. Writes <into>/accuracy_<device>.md and .csv with every error, signed.
What --seconds leaves no time for is missing from the page, which says so; the same command goes on from there
(records are kept in --records). Words are added to every configuration: `device=cpu` and small sizes compare
the ledger of the fake step with that of the real one, without a GPU.
Exit code 1 when a configuration could not be predicted or measured.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from recipes.cli import sweep
from recipes.foresight.validation.error_stats import rank_correlation, signed, summary
from recipes.jobs import fork_client, launch, supervise
from recipes.machine import host
from recipes.options import compose
from recipes.records import record
from recipes.units import GIB, MIB

LIST = ROOT / "docs/results/accuracy_configurations.txt"
JOB = ["recipe=accelerate", "data.samples=256", "train.max_steps=13", "eval.enabled=false", "tracker=none"]
CAPPED = ["train.max_steps=4"]  # enough for every allocation to come again
CAP_MARGIN = 1.03
TARGETS = {
    "allocated": (0.01, 0.03),
    "reserved": (0.02, 0.06),
    "device": (0.03, 0.08),
    "speed": (0.10, 0.25),
    "tensor": (0.01, 0.01),
}  # median and worst size of the error that we aim at


@dataclass
class Row:
    """One configuration: the words for it, and its records as far as they exist."""

    words: list[str]
    predicted: record.Record | None = None
    measured: record.Record | None = None
    capped: record.Record | None = None

    def figures(self, key: str) -> tuple[float | None, float | None]:
        """(predicted, measured) of a column; None where a run did not come to it."""
        return tuple(figure(found, key) for found in (self.predicted, self.measured))


def figure(found: record.Record | None, key: str) -> float | None:
    """What a record says of a column: bytes, or samples per second."""
    if found is None or found.status not in ("ok", "oom"):
        return None
    if key == "speed":
        return found.speed.samples_per_second
    return getattr(found.memory, "device_used_bytes" if key == "device" else f"peak_{key}_bytes")


def read(path: Path) -> list[list[str]]:
    """The configurations of a list: the words of each line that is no comment."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return [shlex.split(line) for line in lines if line and not line.startswith("#")]


# --- running ----------------------------------------------------------------------------------------


def prepare(words: list[str], records: Path) -> launch.Job | record.Record:
    """A job to run; or its record, from an earlier call or of a refusal. Raises ValueError for a misspelt word."""
    cfg, outcome, problems = compose.compose(ROOT / "conf", *words)
    if cfg is None:
        raise ValueError(f"{' '.join(words)}: {' '.join(problems)}")
    if problems:
        outcome.status, outcome.error = "refused", record.Error("load", "Refusal", " ".join(problems))
        return outcome
    folder = records / outcome.config_key
    before = sweep.final_record(folder)
    if before is None:
        folder.mkdir(parents=True, exist_ok=True)
        sweep.clear(folder)
    return before or launch.Job(outcome, folder)


def finish(job: launch.Job | record.Record, nursery: fork_client.ForkServer) -> record.Record:
    """The record of a job that still has to run, or of one that has not."""
    return job if isinstance(job, record.Record) else supervise.run(job, lambda *_: None, nursery)


def predict_all(
    rows: list[Row], more: list[str], records: Path, nursery: fork_client.ForkServer, deadline: float
) -> None:
    """Predictions, as many at once as there are cores."""
    jobs = [prepare([*JOB, *row.words, *more, "recipe=estimate"], records) for row in rows]

    def one(row: Row, job: launch.Job | record.Record) -> None:
        if time.monotonic() < deadline:
            row.predicted = finish(job, nursery)
            tell("predicted", row.predicted, row.words)

    with ThreadPoolExecutor(host.usable_cores()) as pool:
        list(pool.map(one, rows, jobs))


def measure_all(
    rows: list[Row], more: list[str], records: Path, nursery: fork_client.ForkServer, deadline: float
) -> None:
    """Real runs, one after the other: they must not disturb each other's times."""
    on_gpu = bool(host.gpus()) and "device=cpu" not in more
    ledger = f"measure.ledger={'false' if on_gpu else 'true'}"  # on a GPU CUDA itself counts
    for row in rows:
        if time.monotonic() > deadline:
            return
        row.measured = finish(prepare([*JOB, ledger, *row.words, *more], records), nursery)
        tell("measured", row.measured, row.words)
    if not on_gpu:
        return
    for row in rows:
        limit = figure(row.predicted, "reserved")
        if time.monotonic() > deadline or limit is None:
            continue
        cap = f"launch.memory_limit_gib={limit * CAP_MARGIN / GIB:.6f}"
        row.capped = finish(prepare([*JOB, ledger, *CAPPED, *row.words, *more, cap], records), nursery)
        tell("capped", row.capped, row.words)


def tell(what: str, found: record.Record, words: list[str]) -> None:
    why = f": {found.error.message.splitlines()[0]}" if found.error else ""
    print(f"{what:<10}{found.status:<8}{' '.join(words)}{why}", flush=True)


# --- the page ---------------------------------------------------------------------------------------


def columns(rows: list[Row]) -> list[str]:
    """What there is to compare: CUDA's figures and the speed on a GPU, the ledger's peak without one."""
    return [key for key in TARGETS if any(None not in row.figures(key) for row in rows)]


def page(rows: list[Row], title: str) -> str:
    """Markdown: what the errors come to against what we aim at, then every configuration."""
    keys = columns(rows)
    done = [row for row in rows if row.measured is not None and row.measured.status == "ok"]
    lines = [
        f"# {title}",
        "",
        f"{len(done)} of {len(rows)} configurations measured; errors are predicted over measured "
        "minus one, so below zero too little was predicted.",
        "",
        "| | runs | median size | aim | worst | aim | signed median |",
        "|" + " --- |" * 7,
    ]
    for key in keys:
        found, (median, worst) = summary([signed(*row.figures(key)) for row in rows]), TARGETS[key]
        lines.append(
            f"| {key} | {found.count} | {found.median_size:.2%} | {median:.0%} | {found.worst:+.2%} | "
            f"{worst:.0%} | {found.median:+.2%} |"
        )
    if "speed" in keys:
        ranked = rank_correlation(row.figures("speed") for row in rows if None not in row.figures("speed"))
        if ranked is not None:
            lines += ["", f"Rank correlation of the speeds: {ranked:.3f} (aim: over 0.95)."]
    capped = [row.capped for row in rows if row.capped is not None]
    if capped:
        fine = sum(found.status == "ok" for found in capped)
        lines += [
            "",
            f"Capped at the predicted reserved memory plus {CAP_MARGIN - 1:.0%}: {fine} of {len(capped)} finished "
            "(aim: 95 of 100).",
        ]
    lines += [
        "",
        "| configuration | status | "
        + " | ".join(f"{key}: measured | predicted | error" for key in keys)
        + " | capped |",
        "|" + " --- |" * (3 + 3 * len(keys)),
    ]
    for row in rows:
        cells = [" ".join(row.words), row.measured.status if row.measured else "not run"]
        for key in keys:
            predicted, measured = row.figures(key)
            error = signed(predicted, measured)
            cells += [shown(key, measured), shown(key, predicted), "" if error is None else f"{error:+.2%}"]
        lines.append("| " + " | ".join([*cells, row.capped.status if row.capped else ""]) + " |")
    return "\n".join(lines) + "\n"


def shown(key: str, value: float | None) -> str:
    """MiB, or samples per second."""
    if value is None:
        return ""
    return f"{value:.2f}" if key == "speed" else f"{value / MIB:.0f}"


def table(rows: list[Row]) -> list[dict]:
    """The same as the page's last table for other programs: bytes, and samples per second."""
    told = []
    for row in rows:
        line = {"configuration": " ".join(row.words)}
        line |= {
            f"{what}_status": found.status if found else ""
            for what, found in (("predicted", row.predicted), ("measured", row.measured), ("capped", row.capped))
        }
        for key in TARGETS:
            line[f"{key}_predicted"], line[f"{key}_measured"] = row.figures(key)
            line[f"{key}_error"] = signed(*row.figures(key))
        told.append(line)
    return told


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="added to every configuration")
    parser.add_argument("--configurations", type=Path, default=LIST, metavar="FILE")
    parser.add_argument("--into", type=Path, default=ROOT / "docs/results", metavar="DIR", help="where the page goes")
    parser.add_argument(
        "--records", type=Path, default=ROOT / "outputs/accuracy", metavar="DIR", help="where records go"
    )
    parser.add_argument("--seconds", type=float, default=540, help="start nothing after this long")
    told = parser.parse_args(words)
    deadline = time.monotonic() + told.seconds
    rows = [Row(line) for line in read(told.configurations)]
    here = host.gpus()[0].name if host.gpus() and "device=cpu" not in told.words else "CPU"
    name = "accuracy_" + here.lower().replace("nvidia", "").strip().replace(" ", "_")
    nursery = fork_client.ForkServer()
    try:
        predict_all(rows, told.words, told.records, nursery, deadline)
        measure_all(rows, told.words, told.records, nursery, deadline)
    finally:
        nursery.close()
    told.into.mkdir(parents=True, exist_ok=True)
    text = page(rows, f"{here}: predicted against measured")
    found = next((row.measured for row in rows if row.measured is not None), None)
    if found is not None:
        versions = ", ".join(f"{key} {value}" for key, value in found.environment["versions"].items() if value)
        text += f"\nMeasured by `python scripts/accuracy.py` on {time.strftime('%Y-%m-%d')}; {versions}.\n"
    (told.into / f"{name}.md").write_text(text)
    with open(told.into / f"{name}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, table(rows)[0])
        writer.writeheader()
        writer.writerows(table(rows))
    print(text)
    fine = all(
        found is not None and found.status in ("ok", "oom") for row in rows for found in (row.predicted, row.measured)
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
