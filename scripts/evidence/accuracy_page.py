"""Predicted beside measured: the errors of a list of configurations, as a page in Markdown and as rows of a CSV file.

Imports no library at the top: `scripts/evidence/accuracy.py` starts jobs, and imports none of theirs.
"""

from __future__ import annotations

import shlex
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from error_stats import rank_correlation, signed, summary

from legroom.records.record import Record
from legroom.units import MIB

CAP_MARGIN = 1.03  # a capped run may reserve the predicted memory times this
# The errors that the predictions aim at: the median of their sizes, and the worst.
TARGETS = {
    "allocated": (0.01, 0.03),
    "reserved": (0.02, 0.06),
    "device": (0.03, 0.08),
    "speed": (0.10, 0.25),
    "tensor": (0.01, 0.01),
}


@dataclass
class Row:
    """One configuration: its overrides, and its records as far as they exist."""

    overrides: list[str]
    predicted: Record | None = None
    runs: list[Record] = field(default_factory=list)  # measured, one of each pass
    capped: Record | None = None  # measured again, with the memory capped at what was predicted

    @property
    def measured(self) -> Record | None:
        """The first run that finished; else the last."""
        return next((run for run in self.runs if run.status == "ok"), self.runs[-1] if self.runs else None)

    def figures(self, key: str) -> tuple[float | None, float | None]:
        """(predicted, measured: the median of all passes) of a column; None where a run has no value of it."""
        found = [value for value in (figure(run, key) for run in self.runs) if value is not None]
        return figure(self.predicted, key), statistics.median(found) if found else None


def figure(run: Record | None, key: str) -> float | None:
    """The value of a column of TARGETS in a record: bytes, or samples per second."""
    if run is None or run.status not in ("ok", "oom"):
        return None
    if key == "speed":
        return run.speed.samples_per_second
    return getattr(run.memory, "device_used_bytes" if key == "device" else f"peak_{key}_bytes")


def read(path: Path) -> list[list[str]]:
    """The configurations of a list: the overrides on each line that is neither empty nor a comment."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return [shlex.split(line) for line in lines if line and not line.startswith("#")]


def columns(rows: list[Row]) -> list[str]:
    """The columns with values: CUDA's figures and the speed on a GPU, the memory ledger's peak without one."""
    return [key for key in TARGETS if any(None not in row.figures(key) for row in rows)]


def page(rows: list[Row], title: str) -> str:
    """Markdown: the errors of each column beside their targets, then every configuration."""
    keys = columns(rows)
    done = [row for row in rows if row.measured is not None and row.measured.status == "ok"]
    lines = [
        f"# {title}",
        "",
        f"{len(done)} of {len(rows)} configurations measured; errors are predicted over measured "
        "minus one, so below zero too little was predicted.",
        *_passes_lines(rows),
        "",
        *_summary_lines(rows, keys),
    ]
    capped = [row.capped for row in rows if row.capped is not None]
    if capped:
        finished = sum(run.status == "ok" for run in capped)
        lines += [
            "",
            f"Capped at the predicted reserved memory plus {CAP_MARGIN - 1:.0%}: {finished} of {len(capped)} finished "
            "(aim: 95 of 100).",
        ]
    return "\n".join([*lines, "", *_configuration_lines(rows, keys)]) + "\n"


def _passes_lines(rows: list[Row]) -> list[str]:
    """How often each was measured, and how far apart the speeds of one configuration were."""
    counts = {len(row.runs) for row in rows}
    if max(counts, default=0) < 2:
        return []
    spreads = []
    for row in rows:
        speeds = [speed for speed in (figure(run, "speed") for run in row.runs) if speed]
        if len(speeds) > 1:
            spreads.append(max(speeds) / min(speeds) - 1)
    times = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    spread = (
        f" From the slowest run of a configuration to its fastest: median {statistics.median(spreads):.1%}, at most "
        f"{max(spreads):.1%}."
        if spreads
        else ""
    )
    return [f"The whole list was measured {times} times; medians count.{spread}"]


def _summary_lines(rows: list[Row], keys: list[str]) -> list[str]:
    lines = ["| | runs | median size | aim | worst | aim | signed median |", "|" + " --- |" * 7]
    for key in keys:
        total, (median, worst) = summary([signed(*row.figures(key)) for row in rows]), TARGETS[key]
        assert total is not None, "a column has values"
        lines.append(
            f"| {key} | {total.count} | {total.median_size:.2%} | {median:.0%} | {total.worst:+.2%} | "
            f"{worst:.0%} | {total.median:+.2%} |"
        )
    pairs = [row.figures("speed") for row in rows] if "speed" in keys else []
    correlation = rank_correlation((a, b) for a, b in pairs if a is not None and b is not None)
    if correlation is not None:
        lines += ["", f"Rank correlation of the speeds: {correlation:.3f} (aim: over 0.95)."]
        lines += [f"Within {model}: {value:.3f}." for model, value in _by_model(rows)]
    return lines


def _by_model(rows: list[Row]) -> list[tuple[str, float]]:
    """(model, rank correlation of its speeds) for each model of which several were measured."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        predicted, measured = row.figures("speed")
        model = next((word for word in row.overrides if word.startswith("model=")), "model")
        if predicted is not None and measured is not None:
            pairs.setdefault(model, []).append((predicted, measured))
    found = ((model, rank_correlation(values)) for model, values in pairs.items())
    return [(model, value) for model, value in found if value is not None]


def _configuration_lines(rows: list[Row], keys: list[str]) -> list[str]:
    lines = [
        "| configuration | status | "
        + " | ".join(f"{key}: measured | predicted | error" for key in keys)
        + " | capped |",
        "|" + " --- |" * (3 + 3 * len(keys)),
    ]
    for row in rows:
        cells = [" ".join(row.overrides), row.measured.status if row.measured else "not run"]
        for key in keys:
            predicted, measured = row.figures(key)
            error = signed(predicted, measured)
            cells += [shown(key, measured), shown(key, predicted), "" if error is None else f"{error:+.2%}"]
        lines.append("| " + " | ".join([*cells, row.capped.status if row.capped else ""]) + " |")
    return lines


def shown(key: str, value: float | None) -> str:
    """A value of a column as text: MiB, or samples per second."""
    if value is None:
        return ""
    return f"{value:.2f}" if key == "speed" else f"{value / MIB:.0f}"


def csv_rows(rows: list[Row]) -> list[dict[str, str | float | None]]:
    """The page's last table for other programs: bytes, and samples per second."""
    lines = []
    for row in rows:
        line: dict[str, str | float | None] = {"configuration": " ".join(row.overrides)}
        runs = {"predicted": row.predicted, "measured": row.measured, "capped": row.capped}
        line |= {f"{kind}_status": run.status if run else "" for kind, run in runs.items()}
        for key in TARGETS:
            line[f"{key}_predicted"], line[f"{key}_measured"] = row.figures(key)
            line[f"{key}_error"] = signed(*row.figures(key))
        lines.append(line)
    return lines
