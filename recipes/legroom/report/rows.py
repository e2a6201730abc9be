"""The rows of a table of records: one for each configuration, with its repeats (`measure.repeat`, `train.seed`).

A row's figures are medians over the repeats, with the smallest and the largest value.
"""

import math
import statistics
from dataclasses import dataclass, field
from typing import NamedTuple

from legroom.errors import Refusal
from legroom.records.printable import printable
from legroom.records.record import Estimate, Record, shown_status
from legroom.report.labels import facts, label_keys, label_of
from legroom.report.row_order import in_order
from legroom.units import GIB, MIB

DONE = ("ok", "preempted")  # statuses whose figures are valid
NO_NUMBER = "not a number"
# Kinds of memory: (name, meaning). A table shows the first one that all jobs have, so that they can be compared.
MEMORY_KINDS = {
    "device_used_bytes": ("device", "what the whole device had in use, by NVML"),
    "peak_reserved_bytes": ("reserved", "the most that CUDA's allocator reserved"),
    "peak_tensor_bytes": ("tensor", "the largest sum of live tensors"),
}
MAX_KEY_COLUMNS = 6  # with more keys there is one column, with the values that differ from the most common ones


class Spread(NamedTuple):
    """A figure of a row: the median, smallest and largest value over its repeats."""

    median: float
    low: float
    high: float


@dataclass
class Row:
    """One configuration: a job, or its repeats."""

    label: dict[str, str]  # key -> value, of the keys in which the jobs differ and that its options use
    runs: list[Record]
    facts: dict[str, str]  # every key of the configuration, and its environment
    name: str = ""  # the label as overrides: key=value key=value
    published: dict = field(default_factory=dict)  # device_used_bytes, samples_per_second, source

    @property
    def estimate(self) -> bool:
        """Predicted, not measured."""
        return self.runs[0].recipe == "estimate"

    @property
    def counted(self) -> list[Record]:
        """The runs whose figures are valid: also those of an estimate that does not fit."""
        return [run for run in self.runs if run.status in DONE or (self.estimate and run.status == "oom")]

    @property
    def done(self) -> bool:
        """Whether some run has ended with figures."""
        return any(run.status in DONE for run in self.runs)

    @property
    def diverged(self) -> int:
        """How many of the counted runs ended with a loss that is not a number."""
        return sum(run.training.diverged for run in self.counted)

    @property
    def statuses(self) -> list[str]:
        """The status of each run; an estimate has not run out of memory, it does not fit, or is tight."""
        return list(map(shown_status, self.runs))

    @property
    def fit(self) -> Estimate | None:
        """Of an estimate: the capacity of the GPU, and how much of it is left."""
        return next((run.estimate for run in self.runs if run.estimate is not None), None)

    @property
    def status(self) -> str:
        """The status of the runs, or how many of them have each status."""
        ended = self.statuses
        different = list(dict.fromkeys(ended))
        text = ", ".join(f"{ended.count(status)} {status}" for status in different) if different[1:] else ended[0]
        return text + (" (estimate)" if self.estimate else "")

    @property
    def waits(self) -> bool:  # for the host, as predicted: no card is faster than another
        return self.runs[0].speed.bound_by == "host"

    @property
    def jobs_at_once(self) -> int:
        """How many jobs ran at the same time, this one included."""
        counts = [run.environment.get("jobs_at_once") for run in self.runs]
        return max([1, *(count for count in counts if isinstance(count, int))])

    @property
    def notes(self) -> list[str]:
        """Errors with their hints, and whether other jobs ran at the same time."""
        notes = []
        for error in (run.error for run in self.runs):
            if error is not None:
                first = next(iter(error.message.splitlines()), error.type).strip()
                where = "" if error.type == "Refusal" else f"in {error.phase}: "  # which comes before every phase
                note = f"{where}{first}{'' if first.endswith(('.', '?')) else '.'} {error.hint or ''}".rstrip()
                notes.append(printable(note))
        if self.diverged:
            of = f" in {self.diverged} of {len(self.counted)} runs" if len(self.counted) > 1 else ""
            notes.append(f"the loss is {NO_NUMBER}{of}.")
        for step in {run.training.resumed_from_step for run in self.runs} - {None, 0}:
            notes.append(f"resumed at step {step}: the time is that of the steps since.")
        if self.jobs_at_once > 1:
            notes.append(f"{self.jobs_at_once} jobs side by side: they disturb each other's times and device memory.")
        return list(dict.fromkeys(notes))

    def spread(self, part: str, key: str) -> Spread | None:
        """A figure of the record, such as ("speed", "samples_per_second"), over `counted`; None where none has it."""
        values = [getattr(getattr(run, part) or object(), key, None) for run in self.counted]
        values = [value for value in values if value is not None and math.isfinite(value)]
        return Spread(statistics.median(values), min(values), max(values)) if values else None


@dataclass
class Table:
    """All rows, in order. memory_kind: which of MEMORY_KINDS stands for memory. baseline: a row, or None."""

    keys: list[str]
    rows: list[Row]
    memory_kind: str = ""
    baseline: Row | None = None
    left_out: int = 0  # rows that a picture of many jobs does not show

    @property
    def of_gpus(self) -> bool:  # estimates of one training on several cards
        return self.keys == ["gpu"] and all(row.estimate for row in self.rows)

    @property
    def labels(self) -> dict[str, list[str]]:
        """The label columns: heading -> a text for each row."""
        if len(self.keys) > MAX_KEY_COLUMNS:
            return {"job": [row.name for row in self.rows]}
        return {key: [row.label.get(key, "") for row in self.rows] for key in self.keys}

    @property
    def common(self) -> dict[str, str]:
        """The most common value of each key that the jobs differ in."""
        return {key: statistics.mode(row.label.get(key, "") for row in self.rows) for key in self.keys}

    @property
    def memory_name(self) -> str:
        """The heading for memory, without its unit."""
        return f"{MEMORY_KINDS[self.memory_kind][0]} memory"

    @property
    def memory_meaning(self) -> str:
        """What the heading means; an estimate's figure is not from NVML."""
        meaning = MEMORY_KINDS[self.memory_kind][1]
        if all(row.estimate for row in self.rows):
            return meaning.replace(" had in use, by NVML", " would have in use")
        return meaning + ("; estimates are predicted" if any(row.estimate for row in self.rows) else "")

    @property
    def unit(self) -> tuple[str, int]:
        """The unit of the memory columns, and how many bytes it is."""
        most = max((m.high for m in map(self.memory, self.rows) if m), default=0)
        return ("GiB", GIB) if most >= GIB else ("MiB", MIB)

    def memory(self, row: Row) -> Spread | None:
        """Bytes of the kind of memory that the table shows."""
        return row.spread("memory", self.memory_kind)

    def speed(self, row: Row) -> Spread | None:
        """Samples per second."""
        return row.spread("speed", "samples_per_second")


def table(records: list[Record], baseline: str | None = None, published: dict[str, dict] | None = None) -> Table:
    """The records as a table.

    baseline: which row the others are compared with, as conditions: "precision=fp32 optim=adamw", an experiment's name,
    or the start of a config_key; the first row that meets them. None: the first row that ended ok.
    published: conditions of the same kind -> figures that others measured: {"device_used_bytes": bytes,
    "samples_per_second": ..., "source": text, "where": more conditions}.
    Raises Refusal when no row meets the baseline's conditions.
    """
    described = [(found, facts(found)) for found in records]
    keys = label_keys([values for _, values in described])
    used = {(values.get(key.split(".")[0]), key) for _, values in described for key in values if values[key] != "null"}
    rows: dict[tuple, Row] = {}
    for found, values in sorted(described, key=in_order(described, keys)):
        label = label_of(values, keys, used)
        rows.setdefault(tuple(label.items()), Row(label, [], values)).runs.append(found)
    made = Table(keys, list(rows.values()))
    if "gpu" in keys and all(row.estimate for row in made.rows):  # a comparison of cards: the fastest first
        of, none = made.of_gpus, Spread(0, 0, 0)
        speeds = {id(row): math.inf if of and row.waits else (made.speed(row) or none).median for row in made.rows}
        made.rows.sort(key=lambda row: (not row.done, -speeds[id(row)]))  # "as if it fitted" is none to choose by
    common = made.common if len(keys) > MAX_KEY_COLUMNS else {}
    for row in made.rows:
        parts = [f"{key}={value}" for key, value in row.label.items() if value != common.get(key)]
        row.name = " ".join(parts) or "the most common"
    made.memory_kind = _memory_kind(made.rows)
    made.baseline = _baseline(made.rows, baseline)
    for row in made.rows:
        row.published = _published_for(row, published or {})
    return made


def _published_for(row: Row, published: dict[str, dict]) -> dict:
    """The published figures of a row: those with the most conditions."""
    met = [each for each, figures in published.items() if _meets(row, f"{each} {figures.get('where', '')}")]
    return published[max(met, key=lambda conditions: len(conditions.split()))] if met else {}


def _memory_kind(rows: list[Row]) -> str:
    """The first kind that all rows with any memory figure have, or the one that most rows have."""
    having = {kind: sum(row.spread("memory", kind) is not None for row in rows) for kind in MEMORY_KINDS}
    every = sum(any(row.spread("memory", kind) for kind in MEMORY_KINDS) for row in rows)
    return next((kind for kind in having if having[kind] == every), max(having, key=lambda kind: having[kind]))


def _meets(row: Row, conditions: str) -> bool:
    """Whether a row meets all conditions: key=value pairs, an experiment's name, the start of a config_key."""

    def meets(condition: str) -> bool:
        key, equals, value = condition.partition("=")
        if equals:
            return row.facts.get(key) == value
        is_key = len(condition) >= 4 and any(run.config_key.startswith(condition) for run in row.runs)
        return is_key or condition == row.facts["experiment"]

    return bool(conditions.split()) and all(map(meets, conditions.split()))


def _baseline(rows: list[Row], conditions: str | None) -> Row | None:
    """The row that the others are compared with; None where no row has figures.

    Raises Refusal when no row meets the conditions, or none that does has figures.
    """
    if conditions is None:
        return next((row for row in rows if row.done), None)
    chosen = [row for row in rows if row.name == conditions] or [row for row in rows if _meets(row, conditions)]
    if not chosen:
        raise Refusal(f"No job fits the baseline '{conditions}'. The jobs are: {'; '.join(row.name for row in rows)}.")
    done = [row for row in chosen if row.done]
    if not done:
        raise Refusal(f"The baseline '{chosen[0].name}' has no figures: it ended {chosen[0].status}.")
    return done[0]
