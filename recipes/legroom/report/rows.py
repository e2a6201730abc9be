"""The rows of a table of records: one for each configuration, with its repeats (`measure.repeat`, `train.seed`).

A row's figures are medians over the repeats, with the smallest and the largest value.
"""

import datetime
import hashlib
import itertools
import math
import re
import statistics
from dataclasses import dataclass
from typing import Any, NamedTuple

from legroom.errors import Refusal
from legroom.records import record_file
from legroom.records.printable import printable
from legroom.records.record import Error, Estimate, Record, shown_status
from legroom.report.labels import facts, label_keys, label_of
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
MAX_DIGITS = 1000  # of a number in a label that is sorted as a number
MIN_KEY_DIGITS = 4  # of the start of a config_key that names a baseline


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

    @property
    def estimate(self) -> bool:
        """Predicted, not measured."""
        return self.runs[0].recipe == "estimate"

    @property
    def counted(self) -> list[Record]:
        """The runs whose figures are valid: also those of an estimate that does not fit."""
        valid = DONE
        if self.estimate:
            valid = (*DONE, "oom")
        return [run for run in self.runs if run.status in valid]

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
        return [shown_status(run) for run in self.runs]

    @property
    def fit(self) -> Estimate | None:
        """Of an estimate: the capacity of the GPU, and how much of it is left."""
        for run in self.runs:
            if run.estimate is not None:
                return run.estimate
        return None

    @property
    def status(self) -> str:
        """The status of the runs, or how many of them have each status."""
        statuses = self.statuses
        different = list(dict.fromkeys(statuses))
        if len(different) == 1:
            text = statuses[0]
        else:
            text = ", ".join(f"{statuses.count(status)} {status}" for status in different)
        if self.estimate:
            text += " (estimate)"
        return text

    @property
    def waits(self) -> bool:
        """Whether the predicted step waits for the host: no card is faster than another then."""
        return self.runs[0].speed.bound_by == "host"

    @property
    def jobs_at_once(self) -> int:
        """How many jobs ran at the same time, this one included."""
        counts = [run.environment.get("jobs_at_once") for run in self.runs]
        return max([count for count in counts if isinstance(count, int)], default=1)

    @property
    def notes(self) -> list[str]:
        """Errors with their hints, and whether other jobs ran at the same time."""
        notes = [_error_note(run.error) for run in self.runs if run.error is not None]
        if self.diverged:
            share = ""
            if len(self.counted) > 1:
                share = f" in {self.diverged} of {len(self.counted)} runs"
            notes.append(f"the loss is {NO_NUMBER}{share}.")
        for step in {run.training.resumed_from_step for run in self.runs}:
            if step:
                notes.append(f"resumed at step {step}: the time is that of the steps since.")
        if self.jobs_at_once > 1:
            notes.append(f"{self.jobs_at_once} jobs side by side: they disturb each other's times and device memory.")
        return list(dict.fromkeys(notes))

    def spread(self, part: str, key: str) -> Spread | None:
        """A figure of the record, such as ("speed", "samples_per_second"), over `counted`; None where none has it."""
        values = []
        for run in self.counted:
            value = getattr(getattr(run, part), key, None)  # a run without evaluation has no such part
            if value is not None and math.isfinite(value):
                values.append(value)
        if not values:
            return None
        return Spread(statistics.median(values), min(values), max(values))


def _error_note(error: Error) -> str:
    """Where an error occurred, the first line of its message, and its hint."""
    lines = error.message.splitlines() or [error.type]
    note = lines[0].strip()
    if error.type != "Refusal":  # a refusal comes before every phase
        note = f"in {error.phase}: {note}"
    if not note.endswith((".", "?")):
        note += "."
    if error.hint:
        note += f" {error.hint}"
    return printable(note.rstrip())


@dataclass
class Table:
    """All rows, in order. memory_kind: which of MEMORY_KINDS stands for memory. baseline: a row, or None."""

    keys: list[str]
    rows: list[Row]
    memory_kind: str = ""
    baseline: Row | None = None
    left_out: int = 0  # rows that a table of many jobs does not show

    @property
    def of_gpus(self) -> bool:
        """Whether these are estimates of one training on several cards."""
        return self.keys == ["gpu"] and self.all_estimates

    @property
    def all_estimates(self) -> bool:
        return all(row.estimate for row in self.rows)

    @property
    def runs(self) -> list[Record]:
        """The records of all rows, in the order of the table."""
        runs = []
        for row in self.rows:
            runs += row.runs
        return runs

    @property
    def labels(self) -> dict[str, list[str]]:
        """The label columns: heading -> a text for each row."""
        if len(self.keys) > MAX_KEY_COLUMNS:
            return {"job": [row.name for row in self.rows]}
        columns = {}
        for key in self.keys:
            columns[key] = [row.label.get(key, "") for row in self.rows]
        return columns

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
        if self.all_estimates:
            return meaning.replace(" had in use, by NVML", " would have in use")
        if any(row.estimate for row in self.rows):
            return f"{meaning}; estimates are predicted"
        return meaning

    @property
    def unit(self) -> tuple[str, int]:
        """The unit of the memory columns, and how many bytes it is."""
        for row in self.rows:
            memory = self.memory(row)
            if memory and memory.high >= GIB:
                return "GiB", GIB
        return "MiB", MIB

    def memory(self, row: Row) -> Spread | None:
        """Bytes of the kind of memory that the table shows."""
        return row.spread("memory", self.memory_kind)

    def speed(self, row: Row) -> Spread | None:
        """Samples per second."""
        return row.spread("speed", "samples_per_second")


def make_table(records: list[Record], baseline: str | None = None) -> Table:
    """The records as a table.

    baseline: which row the others are compared with, as conditions: "precision=fp32 optim=adamw", an experiment's name,
    or the start of a config_key; the first row that meets them. None: the first row that ended ok.
    Raises Refusal when no row meets the baseline's conditions.
    """
    jobs = [(record, facts(record)) for record in records]
    keys = label_keys([values for _, values in jobs])
    used = set()  # (option, key) for each key that is not null in some job with that option
    for key in keys:
        menu = key.split(".")[0]
        used |= {(values.get(menu), key) for _, values in jobs if values.get(key, "null") != "null"}
    rows: dict[tuple, Row] = {}
    for record, values in _in_order(jobs, keys):
        label = label_of(values, keys, used)
        row = rows.setdefault(tuple(label.items()), Row(label, [], values))
        row.runs.append(record)
    table = Table(keys, list(rows.values()))
    if "gpu" in keys and table.all_estimates:
        _sort_cards(table)
    _name_rows(table)
    table.memory_kind = _memory_kind(table.rows)
    table.baseline = _baseline(table.rows, baseline)
    return table


def _sort_cards(table: Table) -> None:
    """Sort estimates on several cards: the fastest first, and last those that training does not fit on.

    Their speed, as if it fitted, is none to choose by.
    """

    def rank(row: Row) -> tuple[bool, float]:
        speed = table.speed(row)
        if table.of_gpus and row.waits:
            samples_per_second = math.inf
        elif speed is None:
            samples_per_second = 0.0
        else:
            samples_per_second = speed.median
        return not row.done, -samples_per_second

    table.rows.sort(key=rank)


def _name_rows(table: Table) -> None:
    """Name each row by its label, or where that is long by what differs from the most common values."""
    common = {}
    if len(table.keys) > MAX_KEY_COLUMNS:
        common = table.common
    for row in table.rows:
        parts = [f"{key}={value}" for key, value in row.label.items() if value != common.get(key)]
        row.name = " ".join(parts) or "the most common"


def _memory_kind(rows: list[Row]) -> str:
    """The first kind that all rows with any memory figure have, or the one that most rows have."""
    with_kind = dict.fromkeys(MEMORY_KINDS, 0)
    with_any = 0
    for row in rows:
        kinds = [kind for kind in MEMORY_KINDS if row.spread("memory", kind) is not None]
        for kind in kinds:
            with_kind[kind] += 1
        if kinds:
            with_any += 1
    for kind, count in with_kind.items():
        if count == with_any:
            return kind
    return max(with_kind, key=lambda kind: with_kind[kind])


# --- the baseline --------------------------------------------------------------------------------------


def _baseline(rows: list[Row], conditions: str | None) -> Row | None:
    """The row that the others are compared with; None where no row has figures.

    Raises Refusal when no row meets the conditions, or none that does has figures.
    """
    if conditions is None:
        chosen = rows
    else:
        chosen = [row for row in rows if row.name == conditions]  # a whole name goes before a part of one
        if not chosen:
            chosen = [row for row in rows if _meets(row, conditions)]
        if not chosen:
            names = "; ".join(row.name for row in rows)
            raise Refusal(f"No job fits the baseline '{conditions}'. The jobs are: {names}.")
    for row in chosen:
        if row.done:
            return row
    if conditions is None:
        return None
    raise Refusal(f"The baseline '{chosen[0].name}' has no figures: it ended {chosen[0].status}.")


def _meets(row: Row, conditions: str) -> bool:
    """Whether a row meets all conditions: key=value pairs, an experiment's name, the start of a config_key."""
    return bool(conditions.split()) and all(_meets_one(row, condition) for condition in conditions.split())


def _meets_one(row: Row, condition: str) -> bool:
    key, equals, value = condition.partition("=")
    if equals:
        return row.facts.get(key) == value
    if condition == row.facts["experiment"]:
        return True
    return len(condition) >= MIN_KEY_DIGITS and any(run.config_key.startswith(condition) for run in row.runs)


# --- the order -----------------------------------------------------------------------------------------


def _in_order(jobs: list[tuple[Record, dict[str, str]]], keys: list[str]) -> list[tuple[Record, dict[str, str]]]:
    """The jobs, each a record and its facts, sorted by number in the sweep, then by start time, then by label.

    keys: those of the label. The jobs of several sweeps, each numbered from 0, are sorted by start time first.
    """
    numbers = [_job_number(record) for record, _ in jobs]
    one_sweep = None not in numbers and len(set(numbers)) == len(numbers)

    def order(job: tuple[Record, dict[str, str]]) -> tuple:
        record, values = job
        number = _job_number(record) or 0
        measure = record.config.get("measure") or {}
        train = record.config.get("train") or {}
        return (
            number if one_sweep else 0,
            _timestamp(record.environment.get("started_at")),
            number,
            [_natural_order(values.get(key, "")) for key in keys],
            str(measure.get("repeat")),
            str(train.get("seed")),
            str(record.config_key),
        )

    ordered = []
    for _, alike in itertools.groupby(sorted(jobs, key=order), key=order):
        ordered += _by_content(list(alike))
    return ordered


def _by_content(jobs: list[tuple[Record, dict[str, str]]]) -> list[tuple[Record, dict[str, str]]]:
    """Jobs that nothing else tells apart, sorted by all that their records say: their folders do not decide."""
    if len(jobs) == 1:  # the usual case; of thousands of records it would take half a minute
        return jobs
    return sorted(jobs, key=lambda job: hashlib.sha256(record_file.to_json(job[0]).encode()).digest())


def _natural_order(text: str) -> list[tuple[int, str]]:
    """The sort key of a text in which numbers are compared as numbers: x2 before x16."""
    parts = []
    for part in re.split(r"(\d+)", text):
        if part.isdecimal() and len(part) < MAX_DIGITS:
            parts.append((int(part), ""))
        else:
            parts.append((-1, part))
    return parts


def _job_number(record: Record) -> int | None:
    """The number of a job in its sweep; None for a single run."""
    number = record.environment.get("job_number")
    return number if isinstance(number, int) else None


def _timestamp(text: Any) -> float:
    """Seconds of a time in ISO format; infinity where there is none, which sorts last."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return math.inf
