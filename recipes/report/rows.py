"""Records -> rows: a row of the table is a configuration, its repeats (`measure.repeat`, `train.seed`) are one.

A row's figures are medians, with the spread from the least to the most.
"""

from __future__ import annotations

import datetime
import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from recipes.errors import Refusal
from recipes.records import record_file
from recipes.records.record import Record
from recipes.report.labels import facts, label_keys, label_of
from recipes.units import GIB, MIB

DONE = ("ok", "preempted")  # their figures stand
# What the table calls memory: the first of these that all jobs have, so that the jobs can be compared.
MEMORY_KINDS = {
    "device_used_bytes": ("device", "what the whole device had in use, by NVML"),
    "peak_reserved_bytes": ("reserved", "the most that CUDA's allocator reserved"),
    "peak_tensor_bytes": ("tensor", "the largest sum of live tensors"),
}
COLUMNS_AT_MOST = 6  # keys that have a column each; with more, a job is named by what sets it apart from the most


class Spread(NamedTuple):
    """A figure of a row: the median of its repeats, the least and the most."""

    median: float
    low: float
    high: float


@dataclass
class Row:
    """One configuration: a job, or its repeats."""

    label: dict[str, str]  # key -> value, of the keys that tell the jobs apart; without those it does not use
    runs: list[Record]
    facts: dict[str, str]  # every key of the configuration, and where it ran
    name: str = ""  # the label as words that can be typed
    published: dict = field(default_factory=dict)  # device_used_bytes, samples_per_second, source

    @property
    def estimate(self) -> bool:
        """Predicted, not measured."""
        return self.runs[0].recipe == "estimate"

    @property
    def counted(self) -> list[Record]:
        """The runs whose figures stand. An estimate's do even where it says that memory will not do."""
        return [run for run in self.runs if run.status in DONE or (self.estimate and run.status == "oom")]

    @property
    def done(self) -> bool:
        return any(run.status in DONE for run in self.runs)

    @property
    def status(self) -> str:
        """One word, or how many of the repeats ended how."""
        ended = [run.status for run in self.runs]
        words = list(dict.fromkeys(ended))
        text = words[0] if len(words) == 1 else ", ".join(f"{ended.count(word)} {word}" for word in words)
        return text + (" (estimate)" if self.estimate else "")

    @property
    def at_once(self) -> int:
        """How many jobs ran side by side while this one did."""
        return max(
            [1, *(at for at in (run.environment.get("jobs_at_once") for run in self.runs) if isinstance(at, int))]
        )

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures must know: errors with their hints, and jobs side by side."""
        notes = []
        for error in (run.error for run in self.runs):
            if error is not None:
                first = next(iter(error.message.splitlines()), error.type).strip()
                where = "" if error.type == "Refusal" else f"in {error.phase}: "  # a refusal comes before any phase
                notes.append(f"{where}{first}{'' if first.endswith(('.', '?')) else '.'} {error.hint or ''}".rstrip())
        if self.at_once > 1:
            notes.append(f"{self.at_once} jobs side by side: they disturb each other's times and device memory.")
        return list(dict.fromkeys(notes))

    def spread(self, part: str, key: str) -> Spread | None:
        """A figure of the runs that count, such as ("speed", "samples_per_second"); None: not to be had."""
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

    @property
    def labels(self) -> dict[str, list[str]]:
        """The columns that tell the rows apart: heading -> a word for each row."""
        if len(self.keys) > COLUMNS_AT_MOST:
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
        """What the heading stands for. Nobody has asked NVML about an estimate."""
        meaning = MEMORY_KINDS[self.memory_kind][1]
        if all(row.estimate for row in self.rows):
            return meaning.replace(" had in use, by NVML", " would have in use")
        return meaning + ("; estimates are predicted" if any(row.estimate for row in self.rows) else "")

    @property
    def unit(self) -> tuple[str, int]:
        """The unit of the memory columns, and its bytes."""
        most = max((m.high for m in map(self.memory, self.rows) if m), default=0)
        return ("GiB", GIB) if most >= GIB else ("MiB", MIB)

    def memory(self, row: Row) -> Spread | None:
        """Bytes of what the table calls memory."""
        return row.spread("memory", self.memory_kind)

    def speed(self, row: Row) -> Spread | None:
        """Samples per second."""
        return row.spread("speed", "samples_per_second")


# --- reading -------------------------------------------------------------------------------------


def read_all(folders: list[Path | str]) -> tuple[list[Record], list[str]]:
    """Every record in and below the folders, once each, and a line on each file that is none.

    Raises Refusal when a folder is not there.
    """
    records, warnings, seen = [], [], set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise Refusal(f"{folder} is no folder.")
        for path in sorted(folder.rglob(record_file.FILE_NAME)):
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            try:
                records.append(record_file.read(path.parent))
            except (OSError, ValueError) as error:
                warnings.append(f"{path} is left out: {' '.join(str(error).split())}")
    return records, warnings


# --- rows ----------------------------------------------------------------------------------------


def table(records: list[Record], baseline: str | None = None, published: dict[str, dict] | None = None) -> Table:
    """The records as rows.

    baseline: the start of a config_key, or words that a job's configuration has, such as
    "precision=fp32 optim=adamw"; the first job that fits. None: the first job that ended ok.
    published: figures that others measured, by the same kind of words or by an experiment's name:
    {"device_used_bytes": bytes, "samples_per_second": ..., "source": text, "where": words that must fit too}.

    Raises Refusal when there are no records, or no job fits the baseline.
    """
    if not records:
        raise Refusal("There are no records to report on.")
    described = [(found, facts(found)) for found in records]
    keys = label_keys([words for _, words in described])
    used = {(words.get(key.split(".")[0]), key) for _, words in described for key in words if words[key] != "null"}
    rows: dict[tuple, Row] = {}
    for found, words in sorted(described, key=_order(described, keys)):
        label = label_of(words, keys, used)
        rows.setdefault(tuple(label.items()), Row(label, [], words)).runs.append(found)
    made = Table(keys, list(rows.values()))
    common = made.common if len(keys) > COLUMNS_AT_MOST else {}
    for row in made.rows:
        words = [f"{key}={value}" for key, value in row.label.items() if value != common.get(key)]
        row.name = " ".join(words) or "the most common"
    made.memory_kind = _memory_kind(made.rows)
    made.baseline = _baseline(made.rows, baseline)
    for row in made.rows:
        told = row.runs[0].config.get("experiment")
        row.published = dict(told.get("published") or {}) if isinstance(told, dict) else {}
        fitting = [words for words, its in (published or {}).items() if _fits(row, f"{words} {its.get('where', '')}")]
        if fitting:
            row.published = published[max(fitting, key=lambda words: len(words.split()))]  # the most particular
    return made


def _order(described: list, keys: list[str]) -> Callable:
    """The sort key of (record, facts): as the jobs were given, or started, or else by their words."""
    numbers = [found.environment.get("job_number") for found, _ in described]
    one_sweep = None not in numbers and len(set(numbers)) == len(numbers)  # else several, each counted from 0

    def order(job):
        found, words = job
        number, started = found.environment.get("job_number"), _timestamp(found.environment.get("started_at"))
        natural = [
            [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", words.get(key, ""))]
            for key in keys
        ]
        measure, train = found.config.get("measure") or {}, found.config.get("train") or {}
        return (
            number if one_sweep else 0,
            started,
            number or 0,
            natural,
            str(measure.get("repeat")),
            str(train.get("seed")),
            str(found.config_key),
            record_file.to_json(found),
        )

    return order


def _timestamp(text) -> float:
    """Seconds of an ISO time; what has none comes last."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return math.inf


def _memory_kind(rows: list[Row]) -> str:
    """The first kind that every row with any has, or the one that most have."""
    having = {kind: sum(row.spread("memory", kind) is not None for row in rows) for kind in MEMORY_KINDS}
    every = sum(any(row.spread("memory", kind) for kind in MEMORY_KINDS) for row in rows)
    return next((kind for kind in having if having[kind] == every), max(having, key=having.get))


def _fits(row: Row, words: str) -> bool:
    """Whether a row is meant by words: key=value pairs, an experiment's name, or the start of a config_key."""

    def fits(word):
        key, equals, value = word.partition("=")
        if equals:
            return row.facts.get(key) == value
        return word == row.facts["experiment"] or (
            len(word) >= 4 and any(r.config_key.startswith(word) for r in row.runs)
        )

    return bool(words.split()) and all(map(fits, words.split()))


def _baseline(rows: list[Row], words: str | None) -> Row | None:
    """The row that the others are compared with. Raises Refusal when none fits, or none that does has figures."""
    named = [row for row in rows if row.name == words]
    fitting = rows if words is None else named or [row for row in rows if _fits(row, words)]
    if words is not None and not fitting:
        raise Refusal(f"No job fits the baseline '{words}'. The jobs are: {'; '.join(row.name for row in rows)}.")
    done = [row for row in fitting if row.done]
    if words is not None and not done:
        raise Refusal(f"The baseline '{fitting[0].name}' has no figures: it ended {fitting[0].status}.")
    return done[0] if done else None
